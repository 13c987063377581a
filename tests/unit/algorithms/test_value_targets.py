"""Values and rewards of a batch of answers to advantages and returns: by hand, ragged, and through the run's choices."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rl_api import RunSpec
from rl_trainer.algorithms.batch_advantages import batch_advantages
from rl_trainer.algorithms.value_targets import ValueTargets, value_metrics, value_targets


def test_by_hand_over_answers_of_different_lengths() -> None:
    """gamma 0.9, lambda 0.5; V = 1, 2, 3 and r = 0, 0, 5 as in test_gae; and one token with V = 1, r = 3."""
    rewards = [np.array([0.0, 0.0, 5.0]), np.array([3.0]), np.zeros(0)]
    values = [np.array([1.0, 2.0, 3.0]), np.array([1.0]), np.zeros(0)]
    first, second, empty = value_targets(rewards, values, gamma=0.9, lam=0.5)
    assert first.returns == pytest.approx([2.52, 3.6, 5.0])
    assert second.returns == pytest.approx([3.0])
    assert len(empty.advantages) == len(empty.returns) == 0
    raw = np.array([1.52, 1.6, 2.0, 2.0])
    white = (raw - raw.mean()) / math.sqrt(raw.var(ddof=1) + 1e-8)
    assert np.concatenate([first.advantages, second.advantages]) == pytest.approx(white)
    assert first.values is not None
    with pytest.raises(ValueError, match="lengths"):
        value_targets(rewards, values[:2], gamma=1.0, lam=1.0)
    assert value_targets([], [], gamma=1.0, lam=1.0) == []


def test_how_good_the_critic_was() -> None:
    def targets(values: list[float], returns: list[float]) -> list[ValueTargets]:
        return [ValueTargets(np.zeros(len(values)), np.array(returns), np.array(values))]

    assert value_metrics(targets([1.0, 3.0], [1.0, 3.0]))["explained_variance"] == 1.0
    assert value_metrics(targets([2.0, 2.0], [1.0, 3.0]))["explained_variance"] == 0.0
    # Var(R - V) = Var(0, 2) = 1 of Var(R) = 4.
    half = value_metrics(targets([1.0, 3.0], [1.0, 5.0]))
    assert half == {"explained_variance": 0.75, "value_mean": 2.0, "return_mean": 3.0}
    assert value_metrics(targets([1.0, 3.0], [2.0, 2.0])) == {"value_mean": 2.0, "return_mean": 2.0}
    assert value_metrics(targets([], [])) == value_metrics([]) == {}


def test_rewards_are_shaped_before_the_values_judge_them() -> None:
    """Overlong penalty and KL in the reward: r = (-0.5 kl_1, 1 - 0.5 - 0.5 kl_2) for two of four tokens allowed."""
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {
                "name": "ppo",
                "groupSize": 1,
                "advantage": {"lambda": 1.0},
                "overlong": {"buffer": 1.0},
                "kl": {"coefficient": 0.5, "estimator": "k1", "placement": "reward"},
            },
            "sampler": {"maxNewTokens": 4},
        }
    )
    groups = [
        SimpleNamespace(group_id=index, rewards=[reward], lengths=[2])
        for index, reward in ((0, 1.0), (1, 0.0))
    ]
    kl = [np.array([0.2, 0.4]), np.zeros(2)]
    values = [np.zeros(2), np.array([0.25, 0.5])]
    found, stats = batch_advantages(spec, groups, kl, values)  # type: ignore[arg-type]
    assert [list(one.returns) for one in found if isinstance(one, ValueTargets)] == [
        pytest.approx([0.2, 0.3]),
        pytest.approx([-0.5, -0.5]),
    ]
    assert stats.reward_mean == 0.5
    with pytest.raises(ValueError, match="values"):
        batch_advantages(spec, groups, kl)  # type: ignore[arg-type]
