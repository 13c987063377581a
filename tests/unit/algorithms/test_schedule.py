"""The learning rate by hand and its shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.algorithm import OptimizerSpec
from rl_trainer.algorithms.schedule import learning_rate


def test_warm_up_starts_above_zero_and_ends_at_the_base() -> None:
    rates = [learning_rate(step, 1.0, 10, OptimizerSpec(warmup_steps=4)) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("constant", [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
        # base * (0.2 + 0.8 * (1 - p)), p = 0, 1/4, 1/2, 3/4, then the floor 0.4.
        ("linear", [2.0, 1.6, 1.2, 0.8, 0.4, 0.4]),
        # base * (0.2 + 0.4 * (1 + cos(pi p))): cos = 1, 0.70710678, 0, -0.70710678, -1.
        ("cosine", [2.0, 1.76568542, 1.2, 0.63431458, 0.4, 0.4]),
    ],
)
def test_decay_by_hand(decay: str, rates: list[float]) -> None:
    found = [
        learning_rate(step, 2.0, 6, OptimizerSpec(warmup_steps=2, decay=decay, min_ratio=0.2))
        for step in range(2, 8)
    ]
    assert found == pytest.approx(rates)


@given(
    step=st.integers(0, 300),
    total=st.integers(1, 200),
    warmup=st.integers(0, 250),
    decay=st.sampled_from(["constant", "linear", "cosine"]),
    ratio=st.floats(0, 1),
)
def test_it_rises_then_falls_between_its_bounds(
    step: int, total: int, warmup: int, decay: str, ratio: float
) -> None:
    options = OptimizerSpec(warmup_steps=warmup, decay=decay, min_ratio=ratio)
    here, there = (learning_rate(s, 3.0, total, options) for s in (step, step + 1))
    assert 0 <= here <= 3.0 + 1e-12
    if step + 1 < warmup:
        assert here < there
    elif step >= warmup:
        assert here + 1e-12 >= there >= 3.0 * ratio - 1e-12


def test_without_a_floor_the_rate_falls_to_zero() -> None:
    options = OptimizerSpec(decay="linear")
    assert [learning_rate(step, 1.0, 2, options) for step in range(3)] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(("total", "warmup"), [(3, 2), (2, 2), (1, 2)])
def test_a_decay_over_one_step_or_less_ends_at_its_floor(total: int, warmup: int) -> None:
    options = OptimizerSpec(warmup_steps=warmup, decay="linear", min_ratio=0.25)
    assert [learning_rate(step, 1.0, total, options) for step in range(5)] == [0.5, 1.0, 1.0, 0.25, 0.25]
