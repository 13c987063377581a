"""Groups of workers: the one way in which a driver calls learners and samplers.

A group calls all of its workers, or some, and gives a handle at once; who waits for it has a deadline, and hears in a
sentence which worker is the reason when it does not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray

from rl_api.errors import ActorDied, RLTrainError
from rl_trainer.flow.calls import DEATHS, MEANWHILE_SECONDS, answer, check_alive, raise_death
from rl_trainer.flow.pulse import BUFFER, Watch


class Handle:
    """Calls that are under way, one of each worker that was asked."""

    def __init__(self, role: str, calls: Mapping[int, ray.ObjectRef[Any]], watch: Watch | None = None):
        """`calls` by rank; the worker of rank i is `{role} i`."""
        self._role, self._watch = role, watch
        self.calls = dict(calls)

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

        Raises as `answer` does.
        """
        deadline = time.monotonic() + timeout
        watch, names = self._watch, {call: f"{self._role} {rank}" for rank, call in self.calls.items()}
        pending, again = list(names), True
        while pending:
            again = again and meanwhile()
            patience = max(0.0, deadline - time.monotonic())
            if watch is not None:
                patience = min(patience, watch.pulse.every)
            done, pending = ray.wait(pending, timeout=min(patience, MEANWHILE_SECONDS) if again else patience)
            if not done and time.monotonic() < deadline:
                if watch is not None:
                    check_alive(watch, {BUFFER, *names.values(), *beside}, phase)
                continue
            call = done[0] if done else pending[0]
            # Where several wait for each other, nobody knows which of them is the reason.
            who = names[call] if done else ", ".join(names[one] for one in pending)
            try:
                answer(call, who, phase, 60.0 if done else 0.0)
            except RLTrainError as error:
                # Its own death is the reason; of a failure, or of something it lost, another's may be.
                if not (isinstance(error, ActorDied) and isinstance(error.__cause__, DEATHS)):
                    raise_death(pending, names, phase)
                raise
        return [answer(call, name, phase, 60.0) for call, name in names.items()]

    def settle(self, timeout: float) -> None:
        """Waits until all have answered or failed, and no longer than `timeout` seconds; whatever they say."""
        if self.calls:
            ray.wait(list(self.calls.values()), num_returns=len(self.calls), timeout=timeout)


class WorkerGroup:
    """Workers of one role, by rank. Calls return at once, with a handle. `watch`: knows who stands still."""

    def __init__(self, role: str, actors: Mapping[int, Any] | Sequence[Any], watch: Watch | None = None):
        self.role, self._watch = role, watch
        self.actors = dict(actors) if isinstance(actors, Mapping) else dict(enumerate(actors))

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

    def offload(self) -> Handle:
        """See `Worker.offload`."""
        return self.all("offload")

    def onload(self) -> Handle:
        """See `Worker.onload`."""
        return self.all("onload")

    def _handle(self, calls: Mapping[int, ray.ObjectRef[Any]]) -> Handle:
        return Handle(self.role, calls, self._watch)
