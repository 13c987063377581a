"""Group-relative advantages (GRPO and Dr. GRPO), as a pure function of rewards."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_api.errors import RewardError

# Rewards that differ by less than this, relative to the largest, differ by rounding of the same sum.
_SAME_REWARD = 1e-12


@dataclass(frozen=True)
class AdvantageStats:
    """What a batch of rewards looked like.

    Attributes:
        samples: number of rewards.
        groups: number of groups.
        zero_variance_groups: groups of two or more whose rewards are all equal: they teach nothing (advantage
            0).
        singleton_groups: groups of one: nothing to compare with (advantage 0). Not counted as zero-variance.
        reward_mean: mean over all samples (0 for an empty batch).
        reward_std: standard deviation over all samples, unbiased (0 for fewer than two samples).
    """

    samples: int
    groups: int
    zero_variance_groups: int
    singleton_groups: int
    reward_mean: float
    reward_std: float


def group_advantages(
    rewards: Sequence[float] | npt.ArrayLike,
    group_ids: Sequence[Hashable] | npt.NDArray[np.generic],
    *,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[npt.NDArray[np.float32], AdvantageStats]:
    """Advantage of every sample against the other samples of its group.

    With `normalize_by_std` (GRPO, arXiv 2402.03300): `A_i = (R_i - mean_g) / (std_g + epsilon)`, where
    `std_g` is the unbiased standard deviation (divisor n - 1). Without it (Dr. GRPO, arXiv 2503.20783): `A_i
    = R_i - mean_g`. Groups whose rewards are all equal, and groups of one sample, have advantage exactly 0
    and are counted, never divided by epsilon (which would turn rounding errors of the mean into advantages).

    Args:
        rewards: [N] finite numbers.
        group_ids: [N] the group each reward belongs to; members need not be next to each other.
        normalize_by_std: divide by the group's standard deviation.
        epsilon: added to the standard deviation, >= 0.

    Returns:
        [N] float32 advantages in the order of `rewards` (computed in float64), and the statistics.

    Raises:
        RewardError: a reward is not finite, or so large that its advantage is not a float32.
        ValueError: lengths differ or epsilon is negative.
    """
    values = np.asarray(rewards, dtype=np.float64).reshape(-1)
    ids = group_ids.tolist() if isinstance(group_ids, np.ndarray) else list(group_ids)
    if len(ids) != len(values):
        raise ValueError(f"{len(values)} rewards but {len(ids)} group ids")
    if epsilon < 0:
        raise ValueError(f"epsilon is {epsilon}, must be at least 0")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise RewardError(
            f"The reward of sample {where} in group {ids[where]} is {values[where]}; "
            "rewards must be finite numbers."
        )

    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(ids):
        members.setdefault(group, []).append(index)

    advantages = np.zeros(len(values), dtype=np.float64)
    zero_variance = singleton = 0
    for indices in members.values():
        group_rewards = values[indices]
        if len(indices) == 1:
            singleton += 1
            continue
        if np.ptp(group_rewards) <= _SAME_REWARD * np.abs(group_rewards).max():
            zero_variance += 1
            continue
        centered = group_rewards - group_rewards.mean()
        if normalize_by_std:
            centered = centered / (group_rewards.std(ddof=1) + epsilon)
        advantages[indices] = centered

    if len(values) and not np.abs(advantages).max() <= np.finfo(np.float32).max:
        raise RewardError(
            f"Rewards between {values.min():g} and {values.max():g} give advantages too large for "
            "32-bit numbers; scale the rewards down."
        )
    stats = AdvantageStats(
        samples=len(values),
        groups=len(members),
        zero_variance_groups=zero_variance,
        singleton_groups=singleton,
        reward_mean=float(values.mean()) if len(values) else 0.0,
        reward_std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
    )
    return advantages.astype(np.float32), stats
