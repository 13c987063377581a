"""GAE and whitening by hand, and GAE's properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_trainer.algorithms.gae import gae, whiten


def test_by_hand() -> None:
    """gamma 0.9, lambda 0.5, V = 1, 2, 3, r = 0, 0, 5.

    d3 = 5 - 3 = 2; d2 = 0.9 * 3 - 2 = 0.7; d1 = 0.9 * 2 - 1 = 0.8.
    A3 = 2; A2 = 0.7 + 0.45 * 2 = 1.6; A1 = 0.8 + 0.45 * 1.6 = 1.52. Returns 2.52, 3.6, 5.
    """
    advantages, returns = gae(
        torch.tensor([0.0, 0.0, 5.0]), torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), gamma=0.9, lam=0.5
    )
    assert advantages.tolist() == pytest.approx([1.52, 1.6, 2.0])
    assert returns.tolist() == pytest.approx([2.52, 3.6, 5.0])
    assert advantages.dtype == torch.float32


def test_it_is_carried_across_what_an_environment_said() -> None:
    """The same three steps with two observation tokens and padding between: nothing discounts, nothing is credited."""
    mask = torch.tensor([[0, 1, 0, 0, 1, 1, 0]])
    values = torch.tensor([[9.0, 1.0, 7.0, float("nan"), 2.0, 3.0, 9.0]], dtype=torch.float64)
    rewards = torch.tensor([[3.0, 0.0, 4.0, float("nan"), 0.0, 5.0, 6.0]], dtype=torch.float64)
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.5)
    assert advantages[0].tolist() == pytest.approx([0.0, 1.52, 0.0, 0.0, 1.6, 2.0, 0.0])
    assert returns[0].tolist() == pytest.approx([0.0, 2.52, 0.0, 0.0, 3.6, 5.0, 0.0])
    assert advantages.dtype == torch.float64


def test_an_answer_that_was_cut_off_goes_on_with_the_last_value() -> None:
    """V(4) = 10: d3 = 5 + 9 - 3 = 11."""
    advantages, _ = gae(
        torch.tensor([[0.0, 0.0, 5.0]]),
        torch.tensor([[1.0, 2.0, 3.0]]),
        torch.ones(1, 3),
        gamma=0.9,
        lam=0.5,
        last_values=torch.tensor([10.0]),
    )
    assert advantages[0].tolist() == pytest.approx([0.8 + 0.45 * (0.7 + 0.45 * 11), 0.7 + 0.45 * 11, 11.0])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), gamma=st.floats(0.5, 1.0), length=st.integers(1, 8))
def test_the_ends_of_lambda(seed: int, gamma: float, length: int) -> None:
    """lambda 1: the return is the discounted sum of rewards, whatever the values; lambda 0: the one-step error."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(2, length, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(2, length)
    _, returns = gae(rewards, values, mask, gamma=gamma, lam=1.0)
    expected = torch.zeros(2, dtype=torch.float64)
    for t in range(length - 1, -1, -1):
        expected = rewards[:, t] + gamma * expected
        torch.testing.assert_close(returns[:, t], expected)
    advantages, _ = gae(rewards, values, mask, gamma=gamma, lam=0.0)
    following = torch.nn.functional.pad(values[:, 1:], (0, 1))
    torch.testing.assert_close(advantages, rewards + gamma * following - values)


def test_no_tokens() -> None:
    advantages, returns = gae(*[torch.zeros(2, 0)] * 3, gamma=1.0, lam=1.0)
    assert advantages.shape == returns.shape == (2, 0)


def test_whiten_by_hand() -> None:
    """1, 2, 6 (and a masked one): mean 3, unbiased variance (4 + 1 + 9) / 2 = 7."""
    values, mask = torch.tensor([[1.0, 2.0], [float("nan"), 6.0]]), torch.tensor([[1, 1], [0, 1]])
    expected = [-2.0 / 7**0.5, -1.0 / 7**0.5, 0.0, 3.0 / 7**0.5]
    assert whiten(values, mask).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_epsilon_is_added_to_the_variance() -> None:
    """-1, 1: unbiased variance 2."""
    values = torch.tensor([-1.0, 1.0])
    assert whiten(values, torch.ones(2), epsilon=2.0).tolist() == pytest.approx([-0.5, 0.5])


def test_one_value_cannot_be_whitened() -> None:
    assert whiten(torch.tensor([5.0, 6.0]), torch.tensor([1, 0])).tolist() == [0.0, 0.0]
