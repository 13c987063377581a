"""The Ray actor around one simulator; `task_workers.py` starts it and asks it. Without torch, as there may be many."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_api.errors import RLTrainError
from rl_api.task import TaskSpec
from rl_trainer.flow.worker import Worker
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.environments.targets import environment_target
from rl_trainer.tasks.killable import KillableProcess, Target


class SimulatorActor(Worker):
    """One simulator: the dialogues of all samplers that are dealt to it, in a process that can be killed."""

    def __init__(self, rank: int, task: TaskSpec, search: Path | None) -> None:
        super().__init__(f"simulator {rank}")
        self._target: Target = environment_target(task, search, KillableProcess())
        self._born = secrets.token_hex(8)

    def ready(self) -> None:
        """Answers once the class is loaded."""

    def call(
        self, seconds: float, method: str, args: Sequence[Any], life: str | None
    ) -> tuple[str, Any, str, float]:
        """Calls a method of `Environments`.

        Args:
            seconds: its deadline.
            method: its name.
            args: with what.
            life: the one in which the dialogues that it is about were begun; None: it is about none.

        Returns:
            `value`, `lost`, `call` or `error`; what it returned or raised; this life of the dialogues; seconds that it took.
        """
        if life is not None and life != self._life:
            return "lost", None, self._life, 0.0
        began = time.perf_counter()
        kind, value = self._called(seconds, method, args)
        return kind, value, self._life, time.perf_counter() - began

    def _called(self, seconds: float, method: str, args: Sequence[Any]) -> tuple[str, Any]:
        try:
            return "value", self._target.call(seconds, method, *args)
        except CallError as error:
            return "call", error.text
        except RLTrainError as error:
            return "error", error

    @property
    def _life(self) -> str:
        return f"{self._born} {self._target.epoch}"
