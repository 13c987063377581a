"""Advantages from rewards, without a critic: pure functions in float64. With a critic: `gae`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rl_api.errors import RewardError

Floats = npt.NDArray[np.float64]

# Rewards that differ by less than this, relative to the largest, differ by rounding of the same sum.
_SAME_REWARD = 1e-12


@dataclass(frozen=True)
class AdvantageStats:
    """What a batch of rewards looked like.

    Attributes:
        zero_variance_groups: groups of two or more whose rewards are all equal: they teach nothing (advantage 0).
        reward_mean: mean over all samples (0 for an empty batch).
        reward_std: standard deviation over all samples, unbiased (0 for fewer than two samples).
    """

    zero_variance_groups: int
    reward_mean: float
    reward_std: float


def zero_variance(rewards: npt.ArrayLike) -> bool:
    """Whether two or more rewards are all equal, up to the rounding of one sum: such a group teaches nothing."""
    values = np.asarray(rewards, dtype=np.float64)
    return len(values) > 1 and bool(np.ptp(values) <= _SAME_REWARD * np.abs(values).max())


def group_advantages(
    rewards: Sequence[float] | npt.ArrayLike,
    group_ids: Sequence[Hashable] | npt.NDArray[np.generic],
    *,
    estimator: Literal["groupMean", "leaveOneOut", "maxRl"] = "groupMean",
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Floats, AdvantageStats]:
    """Advantage of every sample against the other samples of its group.

    With `mean_g` and `std_g` of the group's n rewards (`std_g` unbiased, divisor n - 1):

    - groupMean: `R_i - mean_g` (Dr. GRPO, arXiv 2503.20783), and with `normalize_by_std` over `std_g + epsilon` (GRPO,
      arXiv 2402.03300);
    - leaveOneOut: `R_i - mean of the others = (R_i - mean_g) n / (n - 1)` (RLOO, arXiv 2402.14740), and with
      `normalize_by_std` over `std_g + epsilon`;
    - maxRl: `(R_i - mean_g) / (mean_g + epsilon)`, for rewards >= 0: hard prompts weigh more (MaxRL, arXiv 2602.02710;
      derived for rewards 0 and 1). `normalize_by_std` has no part in it.

    Groups whose rewards are all equal, and groups of one sample, have advantage exactly 0, and are never divided by epsilon
    (which would turn rounding errors of the mean into advantages).

    Args:
        rewards: [N] finite numbers.
        group_ids: [N] the group each reward belongs to; members need not be next to each other.
        estimator: one of the three.
        normalize_by_std: divide by the group's standard deviation.
        epsilon: added to the divisor, >= 0.

    Returns:
        [N] float64 advantages in the order of `rewards`, and the statistics.

    Raises:
        RewardError: a reward is not finite, or so large that its advantage is not a float32, or below 0 with maxRl.
        ValueError: lengths differ.
    """
    values, members = _members(rewards, group_ids)
    if estimator == "maxRl" and len(values) and values.min() < 0:
        raise RewardError(
            f"found a reward of {values.min():g}, allowed with algorithm.advantage.estimator maxRl: rewards >= 0, as "
            "it divides by their mean"
        )
    advantages = np.zeros(len(values), dtype=np.float64)
    for indices in members.values():
        group = values[indices]
        count = len(indices)
        if count == 1 or zero_variance(group):
            continue
        centered = group - group.mean()
        if estimator == "leaveOneOut":
            centered = centered * (count / (count - 1))
        if estimator == "maxRl":
            centered = centered / (group.mean() + epsilon)
        elif normalize_by_std:
            centered = centered / (group.std(ddof=1) + epsilon)
        advantages[indices] = centered
    _check_size(advantages, values)
    return advantages, _stats(values, members)


def batch_normalized_advantages(returns: Sequence[Floats], epsilon: float) -> list[Floats]:
    """`(G - mean) / (std + epsilon)` over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    Mean and unbiased standard deviation are over *tokens*, all sequences together: long answers weigh more, as in the
    paper. A batch whose returns are all equal has advantage 0.

    Args:
        returns: of each sequence the return of every sampled token, [S_i] (`reward_shaping.token_returns`).
        epsilon: added to the standard deviation, >= 0.

    Returns:
        Arrays of the same shapes.
    """
    tokens = np.concatenate([np.zeros(0), *(np.asarray(part, dtype=np.float64) for part in returns)])
    if len(tokens) < 2 or zero_variance(tokens):
        return [np.zeros(len(part), dtype=np.float64) for part in returns]
    mean, scale = tokens.mean(), tokens.std(ddof=1) + epsilon
    return [(np.asarray(part, dtype=np.float64) - mean) / scale for part in returns]


def reward_stats(
    rewards: Sequence[float] | npt.ArrayLike, group_ids: Sequence[Hashable] | npt.NDArray[np.generic]
) -> AdvantageStats:
    """Statistics of a batch of rewards [N]; raises RewardError for one that is not finite."""
    return _stats(*_members(rewards, group_ids))


def _members(
    rewards: Sequence[float] | npt.ArrayLike, group_ids: Sequence[Hashable] | npt.NDArray[np.generic]
) -> tuple[Floats, dict[Hashable, list[int]]]:
    """The rewards as an array, and the positions of each group's members."""
    values = np.asarray(rewards, dtype=np.float64).ravel()
    ids = group_ids.tolist() if isinstance(group_ids, np.ndarray) else list(group_ids)
    if len(ids) != len(values):
        raise ValueError(f"{len(values)} rewards but {len(ids)} group ids")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise RewardError(
            f"The reward of sample {where} in group {ids[where]} is {values[where]}; "
            "rewards must be finite numbers."
        )
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(ids):
        members.setdefault(group, []).append(index)
    return values, members


def _stats(values: Floats, members: dict[Hashable, list[int]]) -> AdvantageStats:
    return AdvantageStats(
        zero_variance_groups=sum(zero_variance(values[indices]) for indices in members.values()),
        reward_mean=float(values.mean()) if len(values) else 0.0,
        reward_std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
    )


def _check_size(advantages: Floats, rewards: Floats) -> None:
    if len(advantages) and not np.abs(advantages).max() <= np.finfo(np.float32).max:
        raise RewardError(
            f"Rewards between {rewards.min():g} and {rewards.max():g} give advantages too large for "
            "32-bit numbers; scale the rewards down."
        )
