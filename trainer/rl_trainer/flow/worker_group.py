"""Groups of workers: the one way in which learners, samplers, simulators and models that score are started and called.

A group calls all of its workers, or some, and gives a handle at once; who waits for it has a deadline, and hears in a
sentence which worker is the reason when it does not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import ray

from rl_api.errors import ActorDied, RLTrainError
from rl_trainer.flow.calls import (
    DEATH_SECONDS,
    DEATHS,
    MEANWHILE_SECONDS,
    answer,
    check_alive,
    no_answer,
    raise_death,
)
from rl_trainer.flow.pulse import BUFFER, Watch


class Company(Protocol):
    """Workers that go on while others are waited for: who of them ends is replaced."""

    @property
    def patience(self) -> float:
        """Seconds after which they are looked after, whatever happens."""
        ...

    @property
    def runs(self) -> Mapping[ray.ObjectRef[Any], int]:
        """Calls that end with one of them, and whose they are."""
        ...

    def look(self) -> None:
        """Looks after them; what it raises ends the wait."""
        ...

    def ended(self, rank: int) -> None:
        """The call of this one has ended."""
        ...

    def check_alive(self, ranks: Iterable[int], phase: str) -> None:
        """Nothing came for as long as `patience`. Raises where it is in vain to wait any longer."""
        ...


class Handle:
    """Calls that are under way, one of each worker that was asked."""

    def __init__(self, role: str, calls: Mapping[int, ray.ObjectRef[Any]], watch: Watch | None = None):
        """`calls` by rank; the worker of rank i is `{role} i`."""
        self._watch = watch
        self.calls = dict(calls)
        self._names = [f"{role} {rank}" for rank in self.calls]  # in their order

    @classmethod
    def of(cls, name: str, call: ray.ObjectRef[Any]) -> Handle:
        """Of one call to an actor of this name."""
        handle = cls("", {0: call})
        handle._names = [name]
        return handle

    @property
    def call(self) -> ray.ObjectRef[Any]:
        """The one call there is."""
        (only,) = self.calls.values()
        return only

    def wait(
        self,
        phase: str,
        timeout: float,
        meanwhile: Callable[[], bool] = lambda: False,
        beside: Collection[str] = (),
        company: Company | None = None,
    ) -> list[Any]:
        """All results, in the order of the calls; as soon as all are there, or one has failed.

        One failure must be seen although the other workers go on waiting for the failed one in a collective; so must one
        that stands still, which the watch knows.

        Args:
            phase: what they do, for sentences.
            timeout: seconds.
            meanwhile: called at once, and every `MEANWHILE_SECONDS` for as long as it asks for that; what it raises ends the
                wait.
            beside: others for whom these may wait: one of them that stands still ends the wait as well.
            company: looked after meanwhile.

        Raises as `answer` does.
        """
        deadline = time.monotonic() + timeout
        watch, names = self._watch, dict(zip(self.calls.values(), self._names, strict=True))
        found: dict[ray.ObjectRef[Any], Any] = {}
        again = True
        while pending := [call for call in names if call not in found]:
            if company is not None:
                company.look()
            again = again and meanwhile()
            runs = {} if company is None else company.runs
            patience = max(0.0, deadline - time.monotonic())
            if watch is not None:
                patience = min(patience, watch.pulse.every)
            if company is not None:
                patience = min(patience, company.patience)
            done, _ = ray.wait(
                [*pending, *runs], timeout=min(patience, MEANWHILE_SECONDS) if again else patience
            )
            answered = next((call for call in done if call in names), None)
            if company is not None and done and answered is None:
                for run in done:
                    company.ended(runs[run])
                continue
            if not done and time.monotonic() < deadline:
                if company is not None:
                    company.check_alive(runs.values(), phase)
                if watch is not None:
                    check_alive(watch, {BUFFER, *names.values(), *beside}, phase)
                continue
            try:
                if answered is None:
                    # Where several wait for each other, nobody knows which of them is the reason.
                    raise no_answer(", ".join(names[one] for one in pending), phase, timeout)
                found[answered] = answer(answered, names[answered], phase, 60.0)
            except RLTrainError as error:
                # Its own death is the reason; of a failure, or of something it lost, another's may be.
                if not (isinstance(error, ActorDied) and isinstance(error.__cause__, DEATHS)):
                    raise_death([one for one in pending if one is not answered], names, phase)
                raise
        return [found[call] for call in names]

    def settle(self, timeout: float) -> None:
        """Waits until all have answered or failed, and no longer than `timeout` seconds; whatever they say."""
        if self.calls:
            ray.wait(list(self.calls.values()), num_returns=len(self.calls), timeout=timeout)


class Stream:
    """Values that one worker yields, each as it comes."""

    def __init__(self, name: str, values: ray.ObjectRefGenerator[Any]):
        self._name, self.values = name, values

    def next(self, phase: str, timeout: float) -> Any | None:
        """The next one; None: that was all. Raises as `answer` does."""
        if not ray.wait([self.values], timeout=timeout)[0]:
            raise no_answer(self._name, phase, timeout)
        call = next(self.values, None)
        return None if call is None else answer(call, self._name, phase, timeout)


class WorkerGroup:
    """Workers of one role, by rank. Calls return at once, with a handle. `watch`: knows who stands still."""

    def __init__(self, role: str, actors: Mapping[int, Any] | Sequence[Any] = (), watch: Watch | None = None):
        self.role, self._watch = role, watch
        self.actors = dict(actors) if isinstance(actors, Mapping) else dict(enumerate(actors))

    @classmethod
    def launch(
        cls,
        role: str,
        worker: type,
        arguments: Mapping[int, tuple[Any, ...]],
        options: Callable[[int], Mapping[str, Any]],
        watch: Watch | None = None,
    ) -> WorkerGroup:
        """Starts the processes, each with arguments of its own, by rank; returns at once. `options`: Ray's, of each."""
        remote = ray.remote(worker)
        if watch is not None:
            for rank in arguments:
                watch.pulse.expect(f"{role} {rank}")
        actors = {rank: remote.options(**options(rank)).remote(*own) for rank, own in arguments.items()}
        return cls(role, actors, watch)

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Handle:
        """Calls every worker with arguments of its own, in the order of ranks."""
        pairs = zip(self.actors.items(), arguments, strict=True)
        return self._handle({rank: getattr(actor, method).remote(*own) for (rank, actor), own in pairs})

    def all(self, method: str, *arguments: Any, **named: Any) -> Handle:
        """Calls every worker with the same arguments."""
        return self._handle(
            {rank: getattr(actor, method).remote(*arguments, **named) for rank, actor in self.actors.items()}
        )

    def one(self, rank: int, method: str, *arguments: Any, **named: Any) -> Handle:
        """Calls one worker."""
        return self._handle({rank: getattr(self.actors[rank], method).remote(*arguments, **named)})

    def again(self, rank: int, method: str) -> Handle:
        """Calls one worker, and its next life where it ends before it has answered: of what is asked of one that starts, Ray
        lets all else fail at once."""
        call = getattr(self.actors[rank], method).options(max_task_retries=-1).remote()
        return self._handle({rank: call})

    def stream(self, rank: int, method: str, *arguments: Any) -> Stream:
        """Calls one worker, which yields its answer in pieces."""
        values = getattr(self.actors[rank], method).options(num_returns="streaming").remote(*arguments)
        return Stream(f"{self.role} {rank}", values)

    def replace(self, rank: int, unanswered: Handle | Stream) -> None:
        """Ends one worker, which Ray starts again, and with it what it has not answered. Until that has ended the life that
        ends might still answer."""
        ray.kill(self.actors[rank], no_restart=False)
        ray.wait(
            [unanswered.values if isinstance(unanswered, Stream) else unanswered.call], timeout=DEATH_SECONDS
        )

    def offload(self) -> Handle:
        """See `Worker.offload`."""
        return self.all("offload")

    def onload(self) -> Handle:
        """See `Worker.onload`."""
        return self.all("onload")

    def _handle(self, calls: Mapping[int, ray.ObjectRef[Any]]) -> Handle:
        return Handle(self.role, calls, self._watch)
