"""Advantages by hand, against verl's numbers, and their properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import RewardError
from rl_trainer.algorithms.advantages import (
    batch_normalized_advantages,
    group_advantages,
    reward_stats,
    zero_variance,
)


def test_by_hand() -> None:
    """Rewards 1, 0: mean 0.5, unbiased std sqrt(0.5) = 0.70710678; with epsilon 0.1, 0.5 / 0.80710678."""
    advantages, stats = group_advantages([1.0, 0.0], ["a", "a"], epsilon=0.1)
    assert advantages.tolist() == pytest.approx([0.5 / 0.80710678, -0.5 / 0.80710678])
    assert advantages.dtype == np.float64
    assert stats.reward_mean == 0.5
    assert stats.reward_std == pytest.approx(0.70710678)


def test_agrees_with_verl() -> None:
    """verl b178a3cd `compute_grpo_outcome_advantage`, epsilon 1e-6; groups a (3), b (2), c (3)."""
    rewards = [1.0, 0.0, 0.5, 5.0, -5.0, 2.0, 2.0, 0.0]
    ids = list("aaabbccc")
    with_std, stats = group_advantages(rewards, ids)
    without, _ = group_advantages(rewards, ids, normalize_by_std=False)
    assert with_std.tolist() == pytest.approx(
        [0.99999797, -0.99999797, 0.0, 0.70710671, -0.70710671, 0.57734978, 0.57734978, -1.15469968], abs=1e-6
    )
    assert without.tolist() == pytest.approx(
        [0.5, -0.5, 0.0, 5.0, -5.0, 0.66666663, 0.66666663, -1.33333337], abs=1e-6
    )
    assert stats.zero_variance_groups == 0


@pytest.mark.parametrize(
    ("estimator", "by_std", "expected"),
    [
        # Rewards 1, 0, 2 (and a pair 3, 3): mean 1, unbiased std 1.
        ("groupMean", False, [0.0, -1.0, 1.0]),
        ("groupMean", True, [0.0, -1.0, 1.0]),
        # Means of the others: 1, 1.5, 0.5.
        ("leaveOneOut", False, [0.0, -1.5, 1.5]),
        ("leaveOneOut", True, [0.0, -1.5, 1.5]),
        ("maxRl", False, [0.0, -1.0, 1.0]),
    ],
)
def test_estimators(estimator: Any, by_std: bool, expected: list[float]) -> None:
    advantages, stats = group_advantages(
        [1.0, 0.0, 2.0, 3.0, 3.0],
        list("aaabb"),
        estimator=estimator,
        normalize_by_std=by_std,
        epsilon=0.0,
    )
    assert advantages.tolist() == pytest.approx([*expected, 0.0, 0.0])
    assert stats.zero_variance_groups == 1


def test_estimators_with_another_scale() -> None:
    """Rewards 1, 0, 0, 0: mean 1/4, std 1/2; the others' means 0 and 1/3. maxRl: 3 and -1, the rarer the more."""
    rewards, ids = [1.0, 0.0, 0.0, 0.0], [0] * 4

    def first(**choices: Any) -> list[float]:
        return group_advantages(rewards, ids, epsilon=0.0, **choices)[0][:2].tolist()

    assert first() == pytest.approx([1.5, -0.5])
    assert first(estimator="leaveOneOut", normalize_by_std=False) == pytest.approx([1.0, -1 / 3])
    assert first(estimator="leaveOneOut") == pytest.approx([2.0, -2 / 3])
    assert first(estimator="maxRl") == pytest.approx([3.0, -1.0])
    assert group_advantages(rewards, ids, estimator="maxRl", epsilon=0.25)[0][0] == pytest.approx(1.5)


def test_max_rl_needs_rewards_that_are_not_negative() -> None:
    with pytest.raises(RewardError, match=r"a reward of -1, allowed .* rewards >= 0"):
        group_advantages([1.0, -1.0], [0, 0], estimator="maxRl")


def test_batch_normalized() -> None:
    """Returns 1, 1 | 0, 0, 3: over tokens mean 1, unbiased variance (0 + 0 + 1 + 1 + 4) / 4 = 1.5."""
    found = batch_normalized_advantages([np.array([1.0, 1.0]), np.array([0.0, 0.0, 3.0])], epsilon=0.0)
    scale = 1.5**0.5
    assert found[0].tolist() == pytest.approx([0.0, 0.0])
    assert found[1].tolist() == pytest.approx([-1 / scale, -1 / scale, 2 / scale])
    with_epsilon = batch_normalized_advantages([np.array([0.0, 2.0])], epsilon=1.0)[0]
    assert with_epsilon.tolist() == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


def test_a_batch_without_variance_is_zero() -> None:
    parts = [np.array([0.3, 0.1 + 0.2]), np.array([0.3])]
    assert [part.tolist() for part in batch_normalized_advantages(parts, epsilon=0.0)] == [[0.0, 0.0], [0.0]]
    assert batch_normalized_advantages([], 1e-6) == []
    assert batch_normalized_advantages([np.array([2.0])], 1e-6)[0].tolist() == [0.0]


def test_zero_variance() -> None:
    assert zero_variance([0.3, 0.1 + 0.2])
    assert zero_variance([0.0, 0.0])
    assert not zero_variance([1.0])
    assert not zero_variance([])
    assert not zero_variance([0.0, 1e-9])


def test_reward_stats() -> None:
    stats = reward_stats([1.0, 0.0, 2.0], ["a", "a", "b"])
    assert (stats.reward_mean, stats.reward_std) == (1.0, 1.0)
    assert reward_stats([5.0], ["a"]).reward_std == 0.0
    with pytest.raises(RewardError, match="sample 0"):
        reward_stats([math.nan], [0])


@pytest.mark.parametrize("estimator", ["groupMean", "leaveOneOut", "maxRl"])
def test_zero_variance_and_singletons_are_zero(estimator: Any) -> None:
    rewards = [5.0, 5.0, 5.0, 0.7, 5.0, 1.0, 0.0]
    ids = [0, 0, 0, 1, 2, 3, 3]
    for normalize in (True, False):
        advantages, stats = group_advantages(
            rewards, ids, estimator=estimator, normalize_by_std=normalize, epsilon=0.0
        )
        assert advantages[:5].tolist() == [0.0] * 5
        assert np.abs(advantages[5:]).min() > 0
        assert stats.zero_variance_groups == 1


def test_rounding_is_no_variance() -> None:
    """0.1 + 0.2 and 0.3 are one reward: without epsilon their difference would become an advantage of 0.7."""
    advantages, stats = group_advantages([0.1 + 0.2, 0.3], [0, 0], epsilon=0.0)
    assert advantages.tolist() == [0.0, 0.0]
    assert stats.zero_variance_groups == 1


def test_an_empty_batch() -> None:
    advantages, stats = group_advantages([], [])
    assert advantages.shape == (0,)
    assert (stats.reward_mean, stats.reward_std) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(RewardError, match=r"sample 1 in group 7 is (nan|inf|-inf)"):
        group_advantages([0.0, bad], [7, 7])


def test_rewards_too_large_for_float32_are_refused() -> None:
    with pytest.raises(RewardError, match="scale the rewards down"):
        group_advantages([1e39, -1e39], [0, 0], normalize_by_std=False)
    largest = float(np.finfo(np.float32).max)
    advantages, _ = group_advantages([largest, -largest], [0, 0], normalize_by_std=False)
    assert advantages.tolist() == [largest, -largest]


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="2 rewards but 1 group ids"):
        group_advantages([1.0, 2.0], [0])


samples = st.lists(st.tuples(st.floats(-5, 5, width=32), st.integers(0, 4)), min_size=1, max_size=30)


@given(batch=samples, normalize=st.booleans(), data=st.data())
def test_order_does_not_matter_and_groups_sum_to_zero(
    batch: list[tuple[float, int]], normalize: bool, data: st.DataObject
) -> None:
    rewards = [reward for reward, _ in batch]
    ids = np.array([group for _, group in batch])
    advantages, stats = group_advantages(rewards, ids, normalize_by_std=normalize)
    order = data.draw(st.permutations(range(len(batch))))
    shuffled, shuffled_stats = group_advantages(
        [rewards[index] for index in order], ids[list(order)], normalize_by_std=normalize
    )
    np.testing.assert_allclose(shuffled, advantages[list(order)], rtol=1e-5, atol=1e-6)
    assert shuffled_stats.zero_variance_groups == stats.zero_variance_groups
    for group in set(ids.tolist()):
        members = advantages[ids == group].astype(np.float64)
        assert abs(members.sum()) < 1e-4
        if normalize and len(members) > 1:
            # (n-1)/n of the variance: |A| can never pass sqrt(n - 1) * sqrt(n / (n - 1)) = sqrt(n).
            assert np.abs(members).max() <= math.sqrt(len(members)) + 1e-5


@given(batch=samples, shift=st.integers(-10, 10), scale=st.integers(1, 10))
def test_with_std_rewards_have_no_unit(batch: list[tuple[float, int]], shift: int, scale: int) -> None:
    """Affine changes of the rewards change nothing when divided by the standard deviation (epsilon 0)."""
    rewards = np.round(np.array([reward for reward, _ in batch]), 2)
    ids = [group for _, group in batch]
    plain, _ = group_advantages(rewards, ids, epsilon=0.0)
    changed, _ = group_advantages(scale * rewards + shift, ids, epsilon=0.0)
    np.testing.assert_allclose(changed, plain, atol=1e-4)
