"""What is known of a training step while it is under way, part by part."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.algorithms.batch_advantages import stats_of_parts
from rl_trainer.buffer.actor import Batch
from rl_trainer.learner.results import UpdateResult


@dataclass
class Step:
    """One training step.

    Attributes:
        parts: those that are being learned from, in order.
        rewards: the statistics of each.
        kl: of each answer, where it is part of the reward, the KL estimate of every sampled token.
        result: of the optimizer; None: its update is not made yet.
    """

    parts: list[Batch] = field(default_factory=list)
    rewards: list[AdvantageStats] = field(default_factory=list)
    kl: list[npt.NDArray[np.float64]] = field(default_factory=list)
    result: UpdateResult | None = None

    @property
    def batch(self) -> Batch:
        """All of its groups."""
        return Batch(self.parts[0].step, [group for part in self.parts for group in part.groups])

    @property
    def stats(self) -> AdvantageStats:
        """Of all rewards."""
        return stats_of_parts(self.batch.groups, self.rewards)

    @property
    def mean_kl(self) -> float | None:
        """Over all tokens; None where it is no part of the reward."""
        return float(np.concatenate(self.kl).mean()) if self.kl else None
