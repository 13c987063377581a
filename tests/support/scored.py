"""What a reward model gives completions."""

from __future__ import annotations

from collections.abc import Sequence

from rl_trainer.rollout.reward_model import RewardModel
from rl_trainer.tasks.scoring import Completion


def scored(model: RewardModel, completions: Sequence[Completion]) -> list[float | str]:
    """The value of each, or why it has none."""
    found: dict[int, float | str] = {}
    for values in model.passes(completions):
        found.update(values)
    return [found[place] for place in range(len(completions))]
