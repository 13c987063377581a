"""Overlong penalty, KL as reward and returns by hand; and all of it through `batch_advantages`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from trajectories import scored

from rl_api import RunSpec
from rl_trainer.algorithms.batch_advantages import batch_advantages, kl_in_reward
from rl_trainer.algorithms.losses import kl_penalty
from rl_trainer.algorithms.reward_shaping import (
    KlEstimator,
    kl_estimates,
    overlong_penalty,
    penalized_rewards,
    token_returns,
    token_rewards,
)
from rl_trainer.trajectory import Group


def test_overlong_penalty() -> None:
    """Limit 100, buffer 20 tokens, penalty 2: 0 up to 80, -1 at 90, -2 from 100 on."""
    found = overlong_penalty([0, 80, 85, 90, 100, 120], 100, 0.2, 2.0)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.5, -1.0, -2.0, -2.0])
    assert overlong_penalty([5, 100], 100, 0.0, 2.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_as_reward_is_the_value_of_kl_as_loss(estimator: KlEstimator) -> None:
    log_probs = torch.tensor([-0.5, -1.2, -0.3, -30.0], dtype=torch.float64)
    reference = torch.tensor([-0.6, -1.5, -0.2, -1.0], dtype=torch.float64)
    expected = kl_penalty(log_probs, reference, estimator)
    assert kl_estimates(log_probs.numpy(), reference.numpy(), estimator).tolist() == pytest.approx(
        expected.tolist()
    )


def test_kl_by_hand() -> None:
    assert kl_estimates([-1.0], [-1.5], "k1").tolist() == [0.5]
    assert kl_estimates([-1.0], [-1.5], "k2").tolist() == [0.125]
    assert kl_estimates([-1.0], [-1.5], "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5])


KL = [np.array([0.1, 0.2]), np.array([0.5])]


def test_kl_is_taken_from_rewards() -> None:
    assert penalized_rewards([1.0, 2.0], KL, 0.5).tolist() == pytest.approx([1 - 0.15, 2 - 0.25])
    parts = token_rewards([1.0, 2.0], [2, 1], KL, 0.5)
    assert [part.tolist() for part in parts] == [pytest.approx([-0.05, 0.9]), pytest.approx([1.75])]
    assert [part.tolist() for part in token_rewards([1.0, 2.0], [2, 0], None, 0.5)] == [[0.0, 1.0], []]


def test_returns() -> None:
    """r = 1, 2, 3: to go 6, 5, 3; with gamma 0.5: 1 + 0.5 (2 + 1.5) = 2.75, 3.5, 3."""
    rewards = [np.array([1.0, 2.0, 3.0])]
    assert token_returns(rewards)[0].tolist() == [6.0, 5.0, 3.0]
    assert token_returns(rewards, 0.5)[0].tolist() == [2.75, 3.5, 3.0]


def spec(new_tokens: int = 10, **algorithm: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "sampler": {"maxNewTokens": new_tokens},
            "algorithm": algorithm,
        }
    )


def groups(*rewards: list[float], lengths: int = 2) -> list[Group]:
    return [scored(index, part, [lengths] * len(part)) for index, part in enumerate(rewards, start=3)]


def test_grpo() -> None:
    advantages, stats = batch_advantages(spec(), groups([1.0, 0.0], [1.0, 1.0]))
    assert advantages == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0, 0.0], abs=1e-5)
    assert (stats.zero_variance_groups, stats.reward_mean) == (1, 0.75)


def test_length_counts_in_the_advantage_and_not_in_the_reported_reward() -> None:
    """Limit 10, buffer 5 tokens: the answer of 10 tokens has 1 - 1 = 0, the one of 5 keeps 1."""
    run = spec(overlong={"buffer": 0.5}, advantage={"normalizeByStd": False})
    given = [scored(0, [1.0, 1.0], [10, 5])]
    advantages, stats = batch_advantages(run, given)
    assert advantages == pytest.approx([-0.5, 0.5])
    assert (stats.reward_mean, stats.reward_std, stats.zero_variance_groups) == (1.0, 0.0, 0)


def test_kl_of_whole_answers() -> None:
    """rloo: R = 1 - 0.1 * 1 = 0.9 and 0 - 0.1 * 2 = -0.2: against the other, 1.1 and -1.1."""
    run = spec(name="rloo", kl={"coefficient": 0.1})
    assert kl_in_reward(run)
    kl = [np.array([0.4, 0.6]), np.array([2.0, 0.0])]
    advantages, _ = batch_advantages(run, groups([1.0, 0.0]), kl)
    assert advantages == pytest.approx([1.1, -1.1])
    with pytest.raises(ValueError, match="token_kl"):
        batch_advantages(run, groups([1.0, 0.0]))
    assert not kl_in_reward(spec(name="rloo", kl={"coefficient": 0.0}))
    assert not kl_in_reward(spec(kl={"coefficient": 0.1}))


def test_reinforce_pp() -> None:
    """Rewards 1 and 0, KL 0.1 * (0, 1) on the first: returns 0.9, 0.9 | 0, 0; mean 0.45, std sqrt(0.81 / 3)."""
    run = spec(name="reinforce_pp", kl={"coefficient": 0.1}, advantage={"epsilon": 0.0}, groupSize=1)
    kl = [np.array([0.0, 1.0]), np.array([0.0, 0.0])]
    advantages, _ = batch_advantages(run, groups([1.0], [0.0]), kl)
    scale = 0.45 / (0.81 / 3) ** 0.5
    assert [np.asarray(part).tolist() for part in advantages] == [
        pytest.approx([scale] * 2),
        pytest.approx([-scale] * 2),
    ]
