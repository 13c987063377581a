"""The whole policy loss and its parts against values worked out by hand and peers' numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.loss_metrics import (
    MAX_METRICS,
    SUM_METRICS,
    empty_metrics,
    merge_metrics,
    metric_means,
)
from rl_trainer.algorithms.losses import (
    Aggregation,
    PolicyLossConfig,
    aggregation_weights,
    policy_loss,
    supervised_loss,
)

torch.set_num_threads(1)

OFF = ImportanceConfig(kind="none")
PLAIN = PolicyLossConfig(importance=OFF)
ONE = LossDenominators(tokens=1, sequences=1, constant_length=1)

# One batch for the peers' numbers below: 4 sequences, the third fully masked.
LOG_PROBS = torch.tensor(
    [[-0.5, -1.2, -0.3, -2.0], [-0.9, -0.1, -1.5, -0.7], [-0.4, -0.6, -0.8, -1.0], [-1.1, -0.2, -0.4, -3.0]]
)
OLD = torch.tensor(
    [[-0.7, -1.0, -0.3, -1.5], [-0.6, -0.5, -1.9, -0.7], [-0.4, -0.5, -0.8, -1.0], [-1.0, -0.6, -0.9, -2.0]]
)
SAMPLER = torch.tensor(
    [[-0.8, -0.9, -0.5, -2.5], [-0.6, -1.4, -1.8, -0.7], [-0.1, -0.5, -0.8, -1.0], [-0.7, -0.6, -1.3, -2.0]]
)
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
DENOMINATORS = LossDenominators.from_lengths([3, 2, 0, 4], constant_length=8)


@pytest.mark.parametrize(
    ("aggregation", "loss", "gradient"),
    [
        # verl b178a3cd `compute_policy_loss_vanilla` (clip 0.2 / 0.28, dual clip off, weights clamped at 2)
        # with token-mean, seq-mean-token-mean and seq-mean-token-sum-norm (scale 3 * 8); OpenRLHF 3c3be623
        # `PolicyLoss` (type tis, thresholds 0 and 2) gives the same numbers for the first two.
        (
            "tokenMean",
            0.7458184361457825,
            [
                [-0.14998432, -0.08231313, -0.13571142, 0.0],
                [0.0, 0.16575831, 0.0, 0.0],
                [0.0, 0.0, 0.0, 0.0],
                [0.11172000, 0.24863747, 0.40993381, 0.0],
            ],
        ),
        (
            "sequenceMean",
            0.6250137090682983,
            [
                [-0.14998432, -0.08231313, -0.13571142, 0.0],
                [0.0, 0.24863747, 0.0, 0.0],
                [0.0, 0.0, 0.0, 0.0],
                [0.08379000, 0.18647809, 0.30745035, 0.0],
            ],
        ),
        (
            "constant",
            0.2796819508075714,
            [
                [-0.05624412, -0.03086742, -0.05089178, 0.0],
                [0.0, 0.06215937, 0.0, 0.0],
                [0.0, 0.0, 0.0, 0.0],
                [0.04189500, 0.09323905, 0.15372518, 0.0],
            ],
        ),
    ],
)
def test_agrees_with_verl_and_openrlhf(
    aggregation: Aggregation, loss: float, gradient: list[list[float]]
) -> None:
    log_probs = LOG_PROBS.clone().requires_grad_()
    config = PolicyLossConfig(clip_low=0.2, clip_high=0.28, aggregation=aggregation)
    output = policy_loss(
        log_probs, ADVANTAGES, MASK, DENOMINATORS, config, old_log_probs=OLD, sampler_log_probs=SAMPLER
    )
    output.loss.backward()
    assert output.loss.item() == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(log_probs.grad, torch.tensor(gradient), atol=1e-6, rtol=0)
    # Both peers report a clip fraction of 0.2222 = 2 of 9 tokens.
    means = metric_means(merge_metrics([as_floats(output.metrics)]))
    assert means["clip_fraction"] == pytest.approx(2 / 9)
    assert means["clip_low_fraction"] == pytest.approx(2 / 9)


def test_aggregation_by_hand() -> None:
    """Token losses 1, 2, 3 | 10 | (masked): token mean 16/4, sequence mean 12/2, sum 16/2, constant 16/10."""
    losses = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    counts = LossDenominators.from_lengths([3, 1, 0], constant_length=5)
    assert (counts.tokens, counts.sequences) == (4, 2)

    def aggregated(name: Aggregation) -> float:
        return (aggregation_weights(mask, name, counts) * losses).sum().item()

    assert aggregated("tokenMean") == pytest.approx(4.0)
    assert aggregated("sequenceMean") == pytest.approx(6.0)
    assert aggregated("sequenceSum") == pytest.approx(8.0)
    assert aggregated("constant") == pytest.approx(1.6)


@pytest.mark.parametrize("aggregation", ["tokenMean", "sequenceMean", "sequenceSum", "constant"])
def test_one_token_is_the_whole_loss(aggregation: Aggregation) -> None:
    assert aggregation_weights(torch.ones(1, 1), aggregation, ONE).tolist() == [[1.0]]


def test_only_the_interpolated_policy_looks_at_staleness() -> None:
    """Recomputed: the ratio is to l_old, however stale the tokens are. r = e^0.5, wide clip."""
    config = PolicyLossConfig(clip_low=0.9, clip_high=9.0, importance=OFF)
    output = policy_loss(
        torch.tensor([-1.0]),
        torch.ones(1),
        torch.ones(1),
        ONE,
        config,
        old_log_probs=torch.tensor([-1.5]),
        sampler_log_probs=torch.tensor([-4.0]),
        staleness=torch.tensor([1]),
    )
    assert output.loss.item() == pytest.approx(-math.exp(0.5))


@pytest.mark.parametrize("aggregation", ["tokenMean", "sequenceMean", "sequenceSum", "constant"])
def test_flat_tokens_weigh_what_padded_ones_weigh(aggregation: Aggregation) -> None:
    padded = aggregation_weights(MASK, aggregation, DENOMINATORS)
    ids = torch.arange(4).unsqueeze(1).expand(4, 4)
    flat = aggregation_weights(torch.ones(9), aggregation, DENOMINATORS, ids[MASK.bool()])
    torch.testing.assert_close(flat, padded[MASK.bool()])


def test_a_batch_without_trained_tokens_has_loss_zero() -> None:
    log_probs = torch.full((2, 3), -1.0, requires_grad=True)
    nothing = LossDenominators.from_lengths([0, 0], constant_length=4)
    names: tuple[Aggregation, ...] = ("tokenMean", "sequenceMean", "sequenceSum", "constant")
    for aggregation in names:
        config = replace(PLAIN, aggregation=aggregation)
        output = policy_loss(log_probs, torch.ones(2), torch.zeros(2, 3), nothing, config)
        (gradient,) = torch.autograd.grad(output.loss, log_probs)
        assert output.loss.item() == 0.0
        assert not gradient.any()


def test_no_tokens_at_all() -> None:
    empty = torch.zeros(0, requires_grad=True)
    config = replace(PLAIN, aggregation="sequenceMean")
    output = policy_loss(
        empty, empty.detach(), empty.detach(), ONE, config, sequence_ids=torch.zeros(0, dtype=torch.long)
    )
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert output.metrics["ratio_max"].item() == 0.0


def test_values_under_the_mask_never_matter() -> None:
    clean = LOG_PROBS.clone().requires_grad_()
    dirty = torch.where(MASK.bool(), LOG_PROBS, torch.nan).requires_grad_()
    config = PolicyLossConfig(kl_coefficient=0.1, entropy_coefficient=0.1)
    outputs = []
    for values, filler in ((clean, 0.0), (dirty, -math.inf)):
        others = [torch.where(MASK.bool(), part, filler) for part in (OLD, SAMPLER, OLD - 0.1, -OLD)]
        output = policy_loss(
            values,
            ADVANTAGES,
            MASK,
            DENOMINATORS,
            config,
            old_log_probs=others[0],
            sampler_log_probs=others[1],
            reference_log_probs=others[2],
            entropy=others[3],
        )
        output.loss.backward()
        outputs.append(output)
    assert torch.equal(outputs[0].loss, outputs[1].loss)
    assert outputs[0].metrics == outputs[1].metrics
    assert clean.grad is not None
    assert dirty.grad is not None
    assert torch.equal(clean.grad, dirty.grad)


def test_without_old_log_probs_the_gradient_is_the_policy_gradient() -> None:
    """One update per batch: ratio 1, nothing clipped, gradient -w A / tokens, w = min(exp(l - l_mu), cap)."""
    log_probs = LOG_PROBS.clone().requires_grad_()
    output = policy_loss(
        log_probs, ADVANTAGES, MASK, DENOMINATORS, PolicyLossConfig(), sampler_log_probs=SAMPLER
    )
    output.loss.backward()
    weight = torch.exp(LOG_PROBS - SAMPLER).clamp(max=2.0)
    torch.testing.assert_close(log_probs.grad, -weight * ADVANTAGES.unsqueeze(1) * MASK / 9)
    assert output.metrics["ratio"].item() == 9.0
    assert output.metrics["ratio_max"].item() == 1.0
    assert output.metrics["clip_low"].item() == output.metrics["clip_high"].item() == 0.0
    assert output.metrics["update_k3"].item() == 0.0


def test_old_equal_to_the_sampler_is_classic_ppo() -> None:
    """Passing the sampler's log-probs as old gives weight 1: the ratio is never counted twice."""
    with_weights = policy_loss(
        LOG_PROBS,
        ADVANTAGES,
        MASK,
        DENOMINATORS,
        PolicyLossConfig(),
        old_log_probs=SAMPLER,
        sampler_log_probs=SAMPLER,
    )
    classic = policy_loss(LOG_PROBS, ADVANTAGES, MASK, DENOMINATORS, PLAIN, old_log_probs=SAMPLER)
    assert torch.equal(with_weights.loss, classic.loss)


def test_metrics_by_hand() -> None:
    """Two tokens. l - l_old: ln 1.5, ln 0.5; A: 1, -1 (both clipped); l_old - l_mu: ln 3 (cut at 2), 0."""
    old = torch.tensor([-2.0, -2.0])
    log_probs = old + torch.tensor([math.log(1.5), math.log(0.5)])
    sampler = old - torch.tensor([math.log(3.0), 0.0])
    entropy = torch.tensor([0.5, 0.25])
    output = policy_loss(
        log_probs,
        torch.tensor([1.0, -1.0]),
        torch.ones(2),
        LossDenominators(2, 1),
        PolicyLossConfig(kl_estimator="k1"),
        old_log_probs=old,
        sampler_log_probs=sampler,
        reference_log_probs=old,
        entropy=entropy,
    )
    # Token losses: w max(-1.5, -1.2) = 2 * -1.2 = -2.4, and 1 * max(0.5, 0.8) = 0.8; the mean is -0.8.
    assert as_floats(output.metrics) == pytest.approx(
        {
            "loss": -0.8,
            "policy_loss": -0.8,
            "tokens": 2.0,
            "clip_low": 1.0,
            "clip_high": 1.0,
            "ratio": 2.0,  # 1.5 + 0.5
            "ratio_max": 1.5,
            "update_k3": (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5)),
            "kl_tokens": 2.0,
            "kl": math.log(1.5) + math.log(0.5),
            "entropy_tokens": 2.0,
            "entropy": 0.75,
            "mismatch_tokens": 2.0,
            "mismatch_k3": 3.0 - math.log(3.0) - 1.0,
            "mismatch_exp_abs": 3.0 + 1.0,
            "mismatch_bounded": 3.0 + 1.0,
            "importance": 2.0 + 1.0,
            "importance_clipped": 1.0,
            "mismatch_ratio_sum": 3.0 + 1.0,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("of_kl", [0.1, 1.0])
@pytest.mark.parametrize("of_entropy", [0.01, 1.0])
def test_kl_and_entropy_terms_by_hand(of_kl: float, of_entropy: float) -> None:
    """l = -1, l_ref = -1.5, l_mu = -1.2, H = 0.7: d = -0.5.

    loss = -A + c_kl * w_kl * k3 - c_H * H with w_kl = e^0.2, k3 = e^-0.5 + 0.5 - 1 = 0.10653066;
    gradient = -w A + c_kl * e^0.2 * 0.5, w = e^0.2 (old is the current policy).
    """
    log_probs = torch.tensor([-1.0], requires_grad=True)
    entropy = torch.tensor([0.7], requires_grad=True)
    output = policy_loss(
        log_probs,
        torch.tensor([1.0]),
        torch.ones(1),
        ONE,
        PolicyLossConfig(kl_coefficient=of_kl, entropy_coefficient=of_entropy),
        sampler_log_probs=torch.tensor([-1.2]),
        reference_log_probs=torch.tensor([-1.5]),
        entropy=entropy,
    )
    output.loss.backward()
    weight = math.exp(0.2)
    assert output.loss.item() == pytest.approx(
        -weight + of_kl * weight * 0.10653066 - of_entropy * 0.7, abs=1e-6
    )
    assert log_probs.grad is not None
    assert entropy.grad is not None
    assert log_probs.grad.item() == pytest.approx(-weight + of_kl * weight * 0.5, abs=1e-6)
    assert entropy.grad.item() == pytest.approx(-of_entropy)
    assert output.metrics["policy_loss"].item() == pytest.approx(-weight)


def test_the_kl_term_is_weighed_by_the_current_policy_not_the_old_one() -> None:
    """A = 0 leaves the KL term alone: l - l_mu = 0.3, l_old - l_mu = 0.1, d = -0.5: e^0.3 * 0.125 (k2)."""
    output = policy_loss(
        torch.tensor([-1.0]),
        torch.tensor([0.0]),
        torch.ones(1),
        ONE,
        PolicyLossConfig(kl_coefficient=1.0, kl_estimator="k2"),
        old_log_probs=torch.tensor([-1.2]),
        sampler_log_probs=torch.tensor([-1.3]),
        reference_log_probs=torch.tensor([-1.5]),
    )
    assert output.loss.item() == pytest.approx(math.exp(0.3) * 0.125, rel=1e-5)


def test_without_importance_the_kl_term_has_weight_one() -> None:
    """A = 0 leaves the KL term alone: d = -0.5, k2 = 0.125, however far the sampler is."""
    config = replace(PLAIN, kl_coefficient=1.0, kl_estimator="k2")
    for sampler in (None, torch.tensor([-3.0])):
        output = policy_loss(
            torch.tensor([-1.0]),
            torch.tensor([0.0]),
            torch.ones(1),
            ONE,
            config,
            sampler_log_probs=sampler,
            reference_log_probs=torch.tensor([-1.5]),
        )
        assert output.loss.item() == pytest.approx(0.125)


def test_gradient_against_finite_differences() -> None:
    """The whole loss with everything that is not stopped, away from the corners of the clip."""
    generator = torch.Generator().manual_seed(3)
    log_probs = -torch.rand(3, 4, generator=generator) - 0.5
    old = log_probs + 0.3 * torch.randn(3, 4, generator=generator)
    reference = log_probs + 0.5 * torch.randn(3, 4, generator=generator)
    config = PolicyLossConfig(
        aggregation="sequenceMean", kl_coefficient=0.3, kl_straight_through=False, importance=OFF
    )
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]])
    counts = LossDenominators.from_lengths([3, 1, 4])

    def value(at: torch.Tensor) -> torch.Tensor:
        return policy_loss(
            at,
            torch.tensor([1.0, -1.0, 0.5]),
            mask,
            counts,
            config,
            old_log_probs=old,
            reference_log_probs=reference,
        ).loss

    point = log_probs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(point), point)
    step = 2e-3
    for row in range(3):
        for column in range(4):
            shift = torch.zeros(3, 4)
            shift[row, column] = step
            numeric = (value(log_probs + shift) - value(log_probs - shift)).item() / (2 * step)
            assert gradient[row, column].item() == pytest.approx(numeric, abs=5e-4)


def test_supervised_loss_by_hand() -> None:
    """(0.5 + 1.5 + 1) / 3 = 1; every trained token has gradient -1/3."""
    log_probs = torch.tensor([[-0.5, -1.5], [-1.0, float("nan")]], requires_grad=True)
    output = supervised_loss(log_probs, torch.tensor([[1, 1], [1, 0]]), LossDenominators.from_lengths([2, 1]))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(1.0)
    assert log_probs.grad is not None
    assert log_probs.grad.flatten().tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 0.0])
    assert output.metrics["tokens"].item() == 3.0


def test_metrics_are_complete_and_what_was_not_measured_is_left_out() -> None:
    output = policy_loss(LOG_PROBS, ADVANTAGES, MASK, DENOMINATORS, PLAIN)
    assert set(output.metrics) == set(SUM_METRICS) | set(MAX_METRICS) == set(empty_metrics())
    means = metric_means(merge_metrics([as_floats(output.metrics)]))
    assert not {"kl", "entropy", "mismatch_kl", "importance_mean"} & set(means)
    assert metric_means(merge_metrics([])) == {
        "loss": 0.0,
        "policy_loss": 0.0,
        "tokens": 0.0,
        "ratio_max": 0.0,
    }


def test_mismatch_is_measured_without_a_cap() -> None:
    output = policy_loss(
        LOG_PROBS, ADVANTAGES, MASK, DENOMINATORS, PLAIN, old_log_probs=OLD, sampler_log_probs=SAMPLER
    )
    unweighted = policy_loss(LOG_PROBS, ADVANTAGES, MASK, DENOMINATORS, PLAIN, old_log_probs=OLD)
    assert torch.equal(output.loss, unweighted.loss)
    means = metric_means(merge_metrics([as_floats(output.metrics)]))
    assert means["mismatch_kl"] > 0
    assert means["importance_mean"] == 1.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PolicyLossConfig(), "sampler_log_probs"),
        (replace(PLAIN, kl_coefficient=0.1), "reference_log_probs"),
        (replace(PLAIN, entropy_coefficient=0.1), "entropy"),
        (replace(PLAIN, proximal="interpolated"), "sampler_log_probs and staleness"),
    ],
)
def test_what_is_missing_is_named(config: PolicyLossConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_loss(LOG_PROBS, ADVANTAGES, MASK, DENOMINATORS, config, staleness=torch.zeros_like(MASK))


def test_misused_aggregation_is_named() -> None:
    with pytest.raises(ValueError, match="sequence_ids"):
        aggregation_weights(torch.ones(3), "sequenceMean", DENOMINATORS)
    with pytest.raises(ValueError, match="constant_length"):
        aggregation_weights(MASK, "constant", LossDenominators(1, 1))


def as_floats(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in metrics.items()}
