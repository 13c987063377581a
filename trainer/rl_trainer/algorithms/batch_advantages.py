"""From a batch of scored groups to the advantages of its answers: shaping, KL and estimator of `spec.algorithm`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rl_api import RunSpec
from rl_trainer.algorithms.advantages import (
    AdvantageStats,
    batch_normalized_advantages,
    group_advantages,
    reward_stats,
)
from rl_trainer.algorithms.reward_shaping import (
    overlong_penalty,
    penalized_rewards,
    token_returns,
    token_rewards,
)
from rl_trainer.algorithms.value_targets import Advantage, value_targets
from rl_trainer.trajectory import Group


def kl_in_reward(spec: RunSpec) -> bool:
    """Whether the KL penalty is taken from the rewards, so that the learners are asked for it before the advantages."""
    return spec.algorithm.kl.placement == "reward" and spec.algorithm.kl.coefficient > 0


def batch_advantages(
    spec: RunSpec,
    groups: Sequence[Group],
    token_kl: Sequence[npt.NDArray[np.float64]] | None = None,
    values: Sequence[npt.NDArray[np.float64]] | None = None,
) -> tuple[list[Advantage], AdvantageStats]:
    """Advantages of all answers of `groups`, in their order.

    Rewards, minus the overlong penalty, minus the KL penalty where it is part of the reward, through the estimator.

    Args:
        spec: the run.
        groups: of the batch.
        token_kl: of each answer the KL estimate of every sampled token, [S_i]; needed where `kl_in_reward`.
        values: of each answer the critic's value of every sampled token, [S_i]; needed with estimator gae.

    Returns:
        One advantage per answer, and the statistics: mean and standard deviation of the rewards as the task gave
        them, groups without variance as the estimator saw them.

    Raises:
        RewardError: a reward is not finite, too large, or not allowed with the estimator.
        ValueError: the KL estimates or the values are missing.
    """
    algorithm = spec.algorithm
    choices = algorithm.advantage
    rewards = np.array([reward for group in groups for reward in group.rewards], dtype=np.float64)
    ids = [group.group_id for group in groups for _ in group.rewards]
    lengths = [length for group in groups for length in group.lengths]
    given = reward_stats(rewards, ids)
    shaped = rewards
    if algorithm.overlong.buffer:
        shaped = shaped + overlong_penalty(
            lengths, spec.sampler.max_new_tokens, algorithm.overlong.buffer, algorithm.overlong.penalty
        )
    coefficient = algorithm.kl.coefficient if kl_in_reward(spec) else 0.0
    if coefficient and token_kl is None:
        raise ValueError("the KL penalty is part of the reward, so token_kl is needed")
    advantages: list[Advantage]
    if choices.estimator == "batchNormalized" or choices.estimator == "gae":
        per_token = token_rewards(shaped, lengths, token_kl if coefficient else None, coefficient)
        if choices.estimator == "batchNormalized":
            returns = token_returns(per_token, choices.gamma)
            advantages = [*batch_normalized_advantages(returns, choices.epsilon)]
        elif values is not None:
            advantages = [*value_targets(per_token, values, gamma=choices.gamma, lam=choices.lam)]
        else:
            raise ValueError("the estimator is gae, so values are needed")
        return advantages, given
    if token_kl is not None:
        shaped = penalized_rewards(shaped, token_kl, coefficient)
    by_group, seen = group_advantages(
        shaped,
        ids,
        estimator=choices.estimator,
        normalize_by_std=choices.normalize_by_std,
        epsilon=choices.epsilon,
    )
    return by_group.tolist(), replace(given, zero_variance_groups=seen.zero_variance_groups)


def stats_of_parts(groups: Sequence[Group], parts: Sequence[AdvantageStats]) -> AdvantageStats:
    """The statistics of a batch from those of its parts; `groups`: all of the batch."""
    if len(parts) == 1:
        return parts[0]
    rewards = [reward for group in groups for reward in group.rewards]
    whole = reward_stats(rewards, [group.group_id for group in groups for _ in group.rewards])
    return replace(whole, zero_variance_groups=sum(part.zero_variance_groups for part in parts))
