"""Workers for what is not decoding: simulators of environments and models that score, as actors with a number and a place of
their own.

A sampler asks them through a `WorkerTarget` or `WorkerScorer` for each, on a thread for each
(`tasks/environments/simulated.py`, `tasks/scoring.py`): it decodes meanwhile. A worker that hangs or dies is replaced, and
what was under way there is played or scored again (`LostError`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError
from rl_api.task import TaskSpec
from rl_trainer.flow.calls import DEATH_SECONDS, answer
from rl_trainer.flow.named_class import named_class
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.groups import Reservation
from rl_trainer.tasks.answers import CallError, LostError
from rl_trainer.tasks.environments.targets import environment_target
from rl_trainer.tasks.killable import KillableProcess, Target
from rl_trainer.tasks.process import START_SECONDS
from rl_trainer.tasks.scoring import Completion, Scorer

# For a worker to import what it is to run.
READY_SECONDS = 600.0
LOADING_ENVIRONMENT, LOADING_MODEL = "loading its environment", "loading its model"


class SimulatorActor:
    """One simulator: the dialogues of all samplers that are dealt to it, in a process that can be killed."""

    def __init__(self, task: TaskSpec, search: Path | None) -> None:
        self._target: Target = environment_target(task, search, KillableProcess())
        self._born = secrets.token_hex(8)

    def ready(self) -> None:
        """Answers once the class is loaded."""

    def call(
        self, seconds: float, method: str, args: Sequence[Any], life: str | None
    ) -> tuple[str, Any, str]:
        """Calls a method of `Environments`.

        Args:
            seconds: its deadline.
            method: its name.
            args: with what.
            life: the one in which the dialogues that it is about were begun; None: it is about none.

        Returns:
            `value`, `lost`, `call` or `error`; what it returned or raised; this life of the dialogues.
        """
        if life is not None and life != self._life:
            return "lost", None, self._life
        try:
            return "value", self._target.call(seconds, method, *args), self._life
        except CallError as error:
            return "call", error.text, self._life
        except RLTrainError as error:
            return "error", error, self._life

    @property
    def _life(self) -> str:
        return f"{self._born} {self._target.epoch}"


class _Worker:
    """A worker as one sampler sees it, through its lives: Ray starts it again whenever it ends.

    Args:
        actor: the worker.
        name: of it, for errors.
        phase: what it does until it is ready.
    """

    def __init__(self, actor: Any, name: str, phase: str) -> None:
        self.actor, self.name, self._phase = actor, name, phase

    def wait_ready(self) -> Any:
        """What its `ready` returns, once it is there: of what is asked of it before, Ray lets all but this fail at once.

        Raises:
            DeadlineExceeded: it is not there after `READY_SECONDS`.
            ActorDied: it is not started again.
        """
        call = self.actor.ready.options(max_task_retries=-1).remote()
        return answer(call, self.name, self._phase, READY_SECONDS)

    def replace(self, call: ray.ObjectRef[Any]) -> None:
        """Ends it, and `call`, which it has not answered. Until that has ended the life that ends might still be `ready`."""
        ray.kill(self.actor, no_restart=False)
        ray.wait([call], timeout=DEATH_SECONDS)


class WorkerTarget:
    """A simulator as a sampler calls it, from one thread. `patience`: seconds for what others have asked before."""

    def __init__(self, actor: Any, name: str, patience: float) -> None:
        self._worker, self._patience = _Worker(actor, name, LOADING_ENVIRONMENT), patience
        self._life: str | None = None
        self._lost = False
        self.epoch = 0

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """See `RemoteTarget.call`. Raises LostError too: the dialogues are to be begun again."""
        if self._lost:
            self._worker.wait_ready()
            self._lost = False
        life = self._life if method in ("reset", "step", "steps") else None
        call = self._worker.actor.call.remote(seconds, method, args, life)
        limit = seconds + self._patience + START_SECONDS
        try:
            kind, value, now = answer(call, self._worker.name, f"calling {method}", limit)
        except ActorDied:
            self._lose()
            raise LostError from None
        except DeadlineExceeded:
            self._worker.replace(call)
            self._lose()
            raise CallError(
                f"has not been answered by {self._worker.name} after {limit:g} s, which is replaced"
            ) from None
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
        actor: the worker.
        name: of it, for errors.
        seconds: deadline of one call.
        patience: seconds for what others have asked before.
        start: seconds for a worker to be started anew, without loading the model.
    """

    def __init__(
        self, actor: Any, name: str, seconds: float, patience: float, start: float = START_SECONDS
    ) -> None:
        self._worker, self._limit = _Worker(actor, name, LOADING_MODEL), seconds + patience + start
        self._loading: float | None = None

    def score(self, completions: Sequence[Completion]) -> list[float | str]:
        """See `Scorer.score`. Raises as `_Worker.wait_ready` does: without the model no group is ever scored."""
        if self._loading is None:
            self._loading = float(self._worker.wait_ready())
        # Others may have had it replaced: it loads then.
        limit = self._limit + 2 * self._loading
        call = self._worker.actor.score.remote(completions)
        try:
            found: list[float | str] = answer(call, self._worker.name, "scoring", limit)
        except ActorDied:
            self._loading = None
            raise LostError from None
        except DeadlineExceeded:
            self._worker.replace(call)
            self._loading = None
            raise LostError from None
        return found


@dataclass(frozen=True)
class TaskWorkers:
    """The workers of a run. Whoever has this can ask them; they end with the run's driver."""

    simulators: tuple[Any, ...] = ()
    reward_models: tuple[Any, ...] = ()
    opened: SharedFolder | None = None  # by reward models, also by those that are started again

    @classmethod
    def launch(
        cls,
        spec: RunSpec,
        reservation: Reservation,
        search: Path | None,
        reward_model: SharedFolder | None = None,
    ) -> TaskWorkers:
        """Starts them in their bundles; returns at once. `reward_model`: what `task.rewardModel` names."""

        def start(actor: Any, kind: str, *args: Any) -> tuple[Any, ...]:
            workers, remote = spec.task.workers.get(kind), ray.remote(actor)
            return tuple(
                remote.options(max_restarts=-1, **reservation.options(f"{kind} {rank}")).remote(*args)
                for rank in range(0 if workers is None else workers.replicas)
            )

        judged = ("reward model", spec.task.reward_model, reward_model)
        return cls(
            start(SimulatorActor, "simulator", spec.task, search),
            # By name: the driver has no torch.
            start(named_class("rl_trainer.rollout.reward_actor", "RewardModelActor"), *judged),
            reward_model,
        )

    def wait_ready(self) -> None:
        """Returns when they have loaded what they run. Raises as `answer` does, and ModelError."""
        for rank, actor in enumerate(self.simulators):
            answer(actor.ready.remote(), f"simulator {rank}", LOADING_ENVIRONMENT, READY_SECONDS)
        for rank, actor in enumerate(self.reward_models):
            answer(actor.ready.remote(), f"reward model {rank}", LOADING_MODEL, READY_SECONDS)

    def scorers(self, spec: RunSpec) -> list[Scorer]:
        """The models that score, as one sampler calls them."""
        model = spec.task.reward_model
        if model is None:
            return []
        seconds = model.timeout.seconds
        return [
            WorkerScorer(actor, f"reward model {rank}", seconds, seconds * spec.sampler.replicas)
            for rank, actor in enumerate(self.reward_models)
        ]

    def targets(self, spec: RunSpec) -> list[Target]:
        """The simulators, as one sampler calls them."""
        simulators = spec.task.simulators
        if simulators is None:
            return []
        patience = simulators.timeout.seconds * spec.sampler.replicas
        return [
            WorkerTarget(actor, f"simulator {rank}", patience) for rank, actor in enumerate(self.simulators)
        ]
