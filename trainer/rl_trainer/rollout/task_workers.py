"""Workers for what is not decoding: simulators of environments and models that score, as groups with a number and places of
their own.

A sampler asks them through a `WorkerTarget` or `WorkerScorer` for each, on a thread for each
(`tasks/environments/simulated.py`, `tasks/scoring.py`): it decodes meanwhile. A worker that hangs or dies is replaced, and
what was under way there is played or scored again (`LostError`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.flow.named_class import named_class
from rl_trainer.flow.worker_group import Stream, WorkerGroup
from rl_trainer.model.shared_folder import READ_RATE, SharedFolder
from rl_trainer.placement.groups import Reservation
from rl_trainer.tasks.answers import CallError, LostError
from rl_trainer.tasks.process import START_SECONDS
from rl_trainer.tasks.scoring import Completion

# For a worker to import what it is to run, besides reading it; longer where its node may take longer to come.
READY_SECONDS = 600.0
# For Ray to notice that a worker has ended itself.
NOTICE_SECONDS = 60.0
# That others may be asked for before: each of their passes has a deadline of its own.
QUEUE_SECONDS = 3600.0
LOADING_ENVIRONMENT, LOADING_MODEL = "loading its environment", "loading its model"


@dataclass
class Work:
    """What one worker, or several, have done for a sampler so far.

    Attributes:
        seconds: that it worked.
        count: for how many turns, or completions.
        beyond: of the call that took the least longer than the work in it: what the way there and back takes.
    """

    seconds: float = 0.0
    count: int = 0
    beyond: float = math.inf

    def add(self, seconds: float, count: int, whole: float) -> None:
        """A call that took `whole` seconds, of which it worked `seconds`."""
        self.seconds += seconds
        self.count += count
        self.beyond = min(self.beyond, max(0.0, whole - seconds))


class _Lives:
    """A worker as one sampler sees it, through its lives: Ray starts it again whenever it ends.

    Args:
        group: the worker's.
        rank: its own.
        phase: what it does until it is ready.
        limit: seconds for that.
    """

    def __init__(self, group: WorkerGroup, rank: int, phase: str, limit: float) -> None:
        self.group, self.rank, self._phase, self._limit = group, rank, phase, limit

    @property
    def name(self) -> str:
        """For sentences."""
        return f"{self.group.role} {self.rank}"

    def wait_ready(self) -> None:
        """Returns once it is there: what is asked of it before, fails at once.

        Raises:
            DeadlineExceeded: it is not there in time.
            ActorDied: it is not started again.
        """
        self.group.again(self.rank, "ready").wait(self._phase, self._limit)


class WorkerTarget:
    """A simulator as a sampler calls it, from one thread. `patience`: seconds for what others have asked before; `loading`:
    for it to load its environment."""

    def __init__(
        self, group: WorkerGroup, rank: int, patience: float, loading: float = READY_SECONDS
    ) -> None:
        self._worker = _Lives(group, rank, LOADING_ENVIRONMENT, loading)
        self._patience = patience
        self._life: str | None = None
        self._lost = False
        self.epoch = 0
        self.work = Work()

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """See `RemoteTarget.call`. Raises LostError too: the dialogues are to be begun again; and as `_Lives.wait_ready`
        does, where it was lost before."""
        if self._lost:
            self._worker.wait_ready()
            self._lost = False
        life = self._life if method in ("reset", "step", "steps") else None
        began = time.perf_counter()
        group, rank = self._worker.group, self._worker.rank
        call = group.one(rank, "call", seconds, method, args, life)
        limit = seconds + self._patience + START_SECONDS
        try:
            ((kind, value, now, worked),) = call.wait(f"calling {method}", limit)
        except ActorDied:
            self._lose()
            raise LostError from None
        except DeadlineExceeded:
            group.replace(rank, call)
            self._lose()
            raise CallError(
                f"has not been answered by {self._worker.name} after {limit:g} s, which is replaced"
            ) from None
        # Dialogues that are begun are the work of their turns.
        turns = len(args[0]) if method == "steps" else int(method == "step")
        self.work.add(worked, turns, time.perf_counter() - began)
        self._begin_life(now)
        if kind == "value":
            return value
        if kind == "lost":
            raise LostError
        raise CallError(value) if kind == "call" else value

    def _lose(self) -> None:
        self._lost = True
        self._begin_life(None)

    def _begin_life(self, life: str | None) -> None:
        if life != self._life:
            self._life = life
            self.epoch += 1


class WorkerScorer:
    """A `RewardModelActor` (`reward_actor.py`) as a sampler calls it, from one thread.

    Args:
        group: the worker's.
        rank: its own.
        seconds: deadline of one forward pass, which the worker keeps itself.
        loading: seconds for it to load the model.
        notice: seconds after which a worker that has not ended itself in time is replaced.
    """

    def __init__(
        self,
        group: WorkerGroup,
        rank: int,
        seconds: float,
        loading: float,
        notice: float = NOTICE_SECONDS,
    ) -> None:
        self._worker, self._limit = _Lives(group, rank, LOADING_MODEL, loading), seconds + notice
        self._ready = False
        self.work = Work()

    def wait_ready(self) -> None:
        """See `Scorer.wait_ready`. Raises as `_Lives.wait_ready` does, and ModelError."""
        if not self._ready:
            self._worker.wait_ready()
            self._ready = True

    def score(self, completions: Sequence[Completion]) -> list[float | str]:
        """See `Scorer.score`."""
        group, rank = self._worker.group, self._worker.rank
        passes = group.stream(rank, "score", completions)
        found: dict[int, float | str] = {}
        begun, asked, began = False, time.perf_counter(), 0.0
        try:
            while (values := self._next(passes, self._limit if begun else QUEUE_SECONDS)) is not None:
                found.update(values)
                if not begun:  # until then it was at what others had asked for
                    begun, began = True, time.perf_counter()
        except ActorDied:
            self._ready = False
            raise LostError(begun) from None
        except DeadlineExceeded:
            group.replace(rank, passes)
            self._ready = False
            raise LostError(begun) from None
        now = time.perf_counter()
        self.work.add(now - began, len(completions), now - asked)
        return [found[place] for place in range(len(completions))]

    def _next(self, passes: Stream, limit: float) -> dict[int, float | str] | None:
        """What the call yields next; None: that was all."""
        values: dict[int, float | str] | None = passes.next("scoring", limit)
        return values


@dataclass(frozen=True)
class TaskWorkers:
    """The workers of a run. Whoever has this can ask them; they end with the run's driver. `opened`: by reward models, also
    by those that are started again. `ready_seconds`: for one to be there, besides what it reads, also where it was lost: its
    pod may have to be placed first."""

    simulators: WorkerGroup = WorkerGroup("simulator")  # noqa: RUF009 - nobody adds to it
    reward_models: WorkerGroup = WorkerGroup("reward model")  # noqa: RUF009
    opened: SharedFolder | None = None
    ready_seconds: float = READY_SECONDS

    @classmethod
    def launch(
        cls,
        spec: RunSpec,
        reservation: Reservation,
        search: Path | None,
        reward_model: SharedFolder | None = None,
    ) -> TaskWorkers:
        """Starts them in their bundles; returns at once. `reward_model`: what `task.rewardModel` names."""

        def start(kind: str, module: str, name: str, *given: Any) -> WorkerGroup:
            workers = spec.task.workers.get(kind)
            ranks = range(0 if workers is None else workers.replicas)
            return WorkerGroup.launch(
                kind,
                named_class(module, name),  # the driver has no torch
                {rank: (rank, *given) for rank in ranks},
                lambda rank: {"max_restarts": -1, **reservation.options(f"{kind} {rank}")},
            )

        judged = (spec.task.reward_model, reward_model)
        return cls(
            start("simulator", "rl_trainer.rollout.simulator_actor", "SimulatorActor", spec.task, search),
            start("reward model", "rl_trainer.rollout.reward_actor", "RewardModelActor", *judged),
            reward_model,
            max(READY_SECONDS, spec.placement.timeout.seconds),
        )

    def wait_ready(self) -> None:
        """Returns when they have loaded what they run. Raises as `Handle.wait` does, and ModelError."""
        self.simulators.all("ready").wait(LOADING_ENVIRONMENT, self.ready_seconds)
        self.reward_models.all("ready").wait(LOADING_MODEL, self.loading_seconds)

    @property
    def loading_seconds(self) -> float:
        """Deadline for a worker to load the model that scores."""
        return self.ready_seconds + (0 if self.opened is None else self.opened.size) / READ_RATE

    def scorers(self, spec: RunSpec) -> list[WorkerScorer]:
        """The models that score, as one sampler calls them."""
        model = spec.task.reward_model
        if model is None:
            return []
        return [
            WorkerScorer(self.reward_models, rank, model.timeout.seconds, self.loading_seconds)
            for rank in self.reward_models.actors
        ]

    def targets(self, spec: RunSpec) -> list[WorkerTarget]:
        """The simulators, as one sampler calls them."""
        simulators = spec.task.simulators
        if simulators is None:
            return []
        patience = simulators.timeout.seconds * spec.sampler.replicas
        return [
            WorkerTarget(self.simulators, rank, patience, self.ready_seconds)
            for rank in self.simulators.actors
        ]
