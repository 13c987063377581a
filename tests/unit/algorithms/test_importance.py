"""Importance weights by hand, at every level; what is measured; the interpolated proximal policy."""

from __future__ import annotations

import math

import pytest
import torch

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import (
    MISMATCH_LIMIT,
    ImportanceConfig,
    ImportanceKind,
    ImportanceLevel,
    importance_ratios,
    importance_weights,
    mismatch_metrics,
    outside_bounds,
    proximal_log_probs,
)
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss

# pi_old / mu per token: 2, 4, 0.5 | 0.5, 0.25 (and a masked one).
RATIOS = torch.tensor([[2.0, 4.0, 0.5], [0.5, 0.25, 100.0]], dtype=torch.float64)
TRAINED = torch.tensor([[True, True, True], [True, True, False]])
SAMPLER = torch.where(TRAINED, -1.0, 0.0).double()
OLD = torch.where(TRAINED, SAMPLER + RATIOS.log(), 0.0)
PRODUCTS = (4.0, 0.125)
MEANS = (4.0 ** (1 / 3), 0.125**0.5)  # 1.5874, 0.35355


@pytest.mark.parametrize(
    ("kind", "level", "low", "high", "expected"),
    [
        ("truncate", "token", None, 3.0, [2.0, 3.0, 0.5, 0.5, 0.25]),
        ("truncate", "token", 0.4, 3.0, [2.0, 3.0, 0.5, 0.5, 0.4]),
        ("mask", "token", 0.4, 3.0, [2.0, 0.0, 0.5, 0.5, 0.0]),
        ("mask", "token", None, 3.0, [2.0, 0.0, 0.5, 0.5, 0.25]),
        ("truncate", "sequence", None, 3.0, [3.0] * 3 + [0.125] * 2),
        ("mask", "sequence", None, 3.0, [0.0] * 3 + [0.125] * 2),
        ("mask", "sequence", 0.2, 5.0, [4.0] * 3 + [0.0] * 2),
        ("truncate", "geometric", None, 1.5, [1.5] * 3 + [MEANS[1]] * 2),
        ("mask", "geometric", 0.3, 1.5, [0.0] * 3 + [1.0] * 2),
        ("mask", "geometric", 0.4, 1.6, [1.0] * 3 + [0.0] * 2),
        ("none", "sequence", None, 2.0, [1.0] * 5),
    ],
)
def test_weights(
    kind: ImportanceKind, level: ImportanceLevel, low: float | None, high: float, expected: list[float]
) -> None:
    config = ImportanceConfig(kind, level, low, high)
    padded = importance_weights(OLD, SAMPLER, TRAINED, config)
    assert padded[TRAINED].tolist() == pytest.approx(expected)
    ids = torch.tensor([[3] * 3, [1] * 3])[TRAINED]
    flat = importance_weights(OLD[TRAINED], SAMPLER[TRAINED], torch.ones(5, dtype=torch.bool), config, ids)
    assert flat.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("low", "expected"), [(0.5, [1, 0, 0, 1]), (None, [0, 0, 0, 1])])
def test_a_ratio_on_a_bound_is_inside(low: float | None, expected: list[int]) -> None:
    ratios = torch.tensor([0.25, 0.5, 2.0, 4.0])
    assert outside_bounds(ratios, ImportanceConfig(low=low, high=2.0)).int().tolist() == expected


def test_ratios_have_limits_and_no_gradient() -> None:
    leaf = torch.tensor([[-1.0, -100.0, 0.0]], requires_grad=True)
    ratios = importance_ratios(leaf, torch.tensor([[-2.0, 0.0, -100.0]]), torch.ones(1, 3).bool(), "token")
    assert not ratios.requires_grad
    assert ratios[0].tolist() == pytest.approx([math.e, math.exp(-20.0), math.exp(20.0)], rel=1e-5)


def test_misuse_is_named() -> None:
    every = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="sequence_ids"):
        importance_weights(torch.zeros(2), torch.zeros(2), every, ImportanceConfig(level="sequence"))


def test_mismatch_metrics() -> None:
    """Ratios 2, 4, 0.5, 0.5, 0.25: sum 7.25; k3 = r - ln r - 1; exp|D| = 2, 4, 2, 2, 4."""
    metrics = {name: value.item() for name, value in mismatch_metrics(OLD, SAMPLER, TRAINED).items()}
    logs = math.log(2.0 * 4.0 * 0.5 * 0.5 * 0.25)
    assert metrics == pytest.approx(
        {
            "mismatch_tokens": 5.0,
            "mismatch_ratio_sum": 7.25,
            "mismatch_k3": 7.25 - 5.0 - logs,
            "mismatch_exp_abs": 14.0,
            "mismatch_bounded": 14.0,
        }
    )


def test_one_token_adds_no_more_to_the_bounded_mismatch_than_its_limit() -> None:
    sampler = torch.tensor([0.0, -15.0])
    metrics = mismatch_metrics(torch.zeros(2), sampler, torch.ones(2, dtype=torch.bool))
    assert metrics["mismatch_bounded"].item() == pytest.approx(1.0 + MISMATCH_LIMIT)
    assert metrics["mismatch_exp_abs"].item() > 1e6


def test_the_weight_multiplies_the_objective_and_the_denominator_stays() -> None:
    """mask leaves the token of ratio 4 and the one of 0.25 out: (2 + 0.5) A0 + 0.5 A1 over 5 tokens."""
    config = PolicyLossConfig(importance=ImportanceConfig("mask", "token", 0.4, 3.0))
    counts = LossDenominators.from_lengths([3, 2])
    advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
    output = policy_loss(OLD, advantages, TRAINED, counts, config, sampler_log_probs=SAMPLER)
    assert output.loss.item() == pytest.approx((-2.5 + 2.0 * 0.5) / 5)
    assert output.metrics["importance"].item() == pytest.approx(3.0)
    assert output.metrics["importance_clipped"].item() == 2.0


@pytest.mark.parametrize(("staleness", "share"), [(0, 0.0), (1, 0.5), (3, 0.75), (-1, 0.0)])
def test_interpolated_proximal_policy(staleness: int, share: float) -> None:
    """l_mu + s / (s + 1) (l - l_mu), with l_mu = -3 and l = -1."""
    log_probs = torch.tensor([-1.0], requires_grad=True)
    old = proximal_log_probs(log_probs, torch.tensor([-3.0]), torch.tensor([staleness]))
    assert old.item() == pytest.approx(-3.0 + 2.0 * share)
    assert not old.requires_grad


def test_decoupled_ppo_with_the_interpolated_policy() -> None:
    """l_mu = -2, l = -1, staleness 1: l_old = -1.5, w = e^0.5, r = e^0.5, wide clip: loss -A e."""
    config = PolicyLossConfig(proximal="interpolated", clip_high=1.0, importance=ImportanceConfig(high=9.0))
    one = LossDenominators(1, 1)
    log_probs, sampler = torch.tensor([-1.0]), torch.tensor([-2.0])
    output = policy_loss(
        log_probs,
        torch.ones(1),
        torch.ones(1),
        one,
        config,
        sampler_log_probs=sampler,
        staleness=torch.tensor([1]),
    )
    assert output.loss.item() == pytest.approx(-math.e, rel=1e-6)
    with pytest.raises(ValueError, match="staleness"):
        policy_loss(log_probs, torch.ones(1), torch.ones(1), one, config, sampler_log_probs=sampler)
