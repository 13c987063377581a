"""The Ray actor around one model that scores; `task_workers.py` starts it and asks it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rl_api.errors import RLTrainError
from rl_api.task import RewardModelSpec
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.rollout.reward_model import RewardModel
from rl_trainer.tasks.scoring import Completion


class RewardModelActor:
    """One worker with the model that scores, which it opens from `folder`."""

    def __init__(self, spec: RewardModelSpec, folder: SharedFolder) -> None:
        started = time.monotonic()
        torch.set_num_threads(max(1, int(spec.cpu)))
        try:
            with folder.opened() as path:
                self._model: RewardModel | RLTrainError = RewardModel(path, spec)
        except RLTrainError as error:  # for `ready`: what fails in here is started again and again
            self._model = error
        self._seconds = time.monotonic() - started

    def ready(self) -> float:
        """Answers once the model is loaded: how many seconds that took. ModelError and the like: it cannot be used."""
        if isinstance(self._model, RLTrainError):
            raise self._model
        return self._seconds

    def score(self, completions: Sequence[Completion]) -> list[float | str]:
        """See `RewardModel.score`."""
        assert not isinstance(self._model, RLTrainError), "it was ready"
        return self._model.score(completions)
