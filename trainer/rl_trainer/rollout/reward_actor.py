"""The Ray actor around one model that scores; `task_workers.py` starts it and asks it."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from rl_api.errors import RLTrainError
from rl_api.task import RewardModelSpec
from rl_trainer.flow.worker import Worker
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.own_device import own_device
from rl_trainer.rollout.reward_model import RewardModel
from rl_trainer.tasks.scoring import Completion


class RewardModelActor(Worker):
    """One worker with the model that scores, which it opens from `folder`: on its GPU, if it has one."""

    def __init__(self, rank: int, spec: RewardModelSpec, folder: SharedFolder) -> None:
        super().__init__(f"reward model {rank}")
        torch.set_num_threads(max(1, int(spec.cpu)))
        device = own_device()
        try:
            with folder.opened() as path:
                self._model: RewardModel | RLTrainError = RewardModel(path, spec, device)
        except RLTrainError as error:  # for `ready`: what fails in here is started again and again
            self._model = error
        self._limit = spec.timeout.seconds

    def ready(self) -> None:
        """Answers once the model is loaded. ModelError and the like: it cannot be used."""
        if isinstance(self._model, RLTrainError):
            raise self._model

    def score(self, completions: Sequence[Completion]) -> Iterator[dict[int, float | str]]:
        """See `RewardModel.passes`; at first nothing, when it begins. Where a pass takes longer than `timeout` this process
        ends."""
        assert not isinstance(self._model, RLTrainError), "it was ready"
        yield {}
        passes = self._model.passes(completions)
        while True:
            with deadline(self._limit):
                found = next(passes, None)
            if found is None:
                return
            yield found


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Ends this process where the block takes longer, wherever it hangs, also in C; its log says where. For one thread."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
