"""Each objective by hand: value and gradient of single tokens, and of sequences where the ratio is a sequence's."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from rl_api.errors import ObjectiveError
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss
from rl_trainer.algorithms.policy_losses import LossInputs, token_losses

OFF = ImportanceConfig(kind="none")
ONE = LossDenominators(tokens=1, sequences=1)


def token_loss(
    ratio: float, advantage: float, sampler: float = -1.0, **choices: Any
) -> tuple[float, float, dict[str, float]]:
    """Loss of a single token with l_old = -1 and l = l_old + ln(ratio), its gradient by l, and the metrics."""
    log_prob = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    output = policy_loss(
        log_prob,
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1),
        ONE,
        PolicyLossConfig(importance=OFF, **choices),
        old_log_probs=torch.tensor([-1.0], dtype=torch.float64),
        sampler_log_probs=torch.tensor([sampler], dtype=torch.float64),
        sequence_ids=torch.zeros(1, dtype=torch.long),
    )
    (gradient,) = torch.autograd.grad(output.loss, log_prob)
    return output.loss.item(), gradient.item(), {key: float(value) for key, value in output.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # max(-A r, -A clip(r, 0.8, 1.2)); the gradient by l is -A r where the first is taken, else 0.
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (2.0, 2.0, -2.4, 0.0),  # max(-4, -2 * 1.2): clipped from above
        (0.5, 2.0, -1.0, -1.0),  # max(-1, -2 * 0.8 = -1.6): a good token that became unlikely is pulled back
        (2.0, -2.0, 4.0, 4.0),  # max(4, 2.4): a bad token that became likely is pushed down
        (0.5, -2.0, 1.6, 0.0),  # max(1, 1.6): clipped from below
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_clip(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    value, slope, _ = token_loss(ratio, advantage)
    assert value == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)


def test_clip_low_and_high_are_two_numbers() -> None:
    wide_above = {"clip_low": 0.1, "clip_high": 0.5}
    assert token_loss(1.4, 1.0, **wide_above)[0] == pytest.approx(-1.4)
    assert token_loss(1.6, 1.0, **wide_above)[0] == pytest.approx(-1.5)
    assert token_loss(0.85, -1.0, **wide_above)[0] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # c = 1.5, clip 0.2: with A < 0 the loss is at most 1.5 |A|.
        (2.0, 2.0, -2.4, 0.0),
        (2.0, -2.0, 3.0, 0.0),  # min(4, 3)
        (0.5, 2.0, -1.0, -1.0),
        (1.4, -2.0, 2.8, 2.8),  # below the bound: as without
        (0.5, -2.0, 1.6, 0.0),
    ],
)
def test_dual_clip(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    value, slope, _ = token_loss(ratio, advantage, dual_clip=1.5)
    assert value == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)


def test_what_is_clipped_is_counted() -> None:
    for ratio, advantage, low, high in [
        (2.0, 0.5, 0, 1),
        (0.5, -0.5, 1, 0),
        (0.5, 0.5, 0, 0),
        (2.0, -0.5, 0, 0),
        (1.0, 0.5, 0, 0),
        (2.0, 0.0, 0, 0),
    ]:
        metrics = token_loss(ratio, advantage)[2]
        assert (metrics["clip_low"], metrics["clip_high"]) == (low, high)
        assert token_loss(ratio, advantage, dual_clip=9.0)[2]["clip_high"] == high
    assert token_loss(4.0, -1.0, dual_clip=3.0)[2]["clip_high"] == 1.0


def at_ratio_one(advantage: float) -> LossInputs:
    """One token whose log-prob is the same under every policy."""
    one = torch.tensor([[-1.0]])
    return LossInputs(one, one, torch.tensor([[advantage]]), torch.ones(1, 1, dtype=torch.bool), one)


@pytest.mark.parametrize("objective", ["ppoClip", "gspo", "cispo", "dppo"])
@pytest.mark.parametrize("advantage", [0.5, -0.5])
def test_a_token_on_the_bound_is_not_clipped(objective: Any, advantage: float) -> None:
    losses = token_losses(objective, at_ratio_one(advantage), 0.0, 0.0, dual_clip=1.0)
    assert losses.loss.item() == (advantage if objective == "cispo" else -advantage)
    assert [flags is not None and flags.item() for flags in losses[1:]] == [False, False]


def test_a_huge_log_ratio_stays_finite() -> None:
    value, slope, _ = token_loss(math.exp(200.0), -1.0)
    assert value == pytest.approx(math.exp(20.0))
    assert slope == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "factor", "low", "high"),
    [
        # -clip(r, 0.5, 3) A l and its gradient -clip(r) A: no token is without one.
        (1.0, 2.0, 1.0, 0, 0),
        (2.0, 2.0, 2.0, 0, 0),
        (5.0, 2.0, 3.0, 0, 1),
        (5.0, -2.0, 3.0, 0, 1),
        (0.1, 2.0, 0.5, 1, 0),
    ],
)
def test_cispo(ratio: float, advantage: float, factor: float, low: int, high: int) -> None:
    value, slope, metrics = token_loss(ratio, advantage, objective="cispo", clip_low=0.5, clip_high=2.0)
    assert value == pytest.approx(-factor * advantage * (math.log(ratio) - 1.0))
    assert slope == pytest.approx(-factor * advantage)
    assert (metrics["clip_low"], metrics["clip_high"]) == (low, high)


def test_cispo_without_a_lower_bound() -> None:
    assert token_loss(1e-3, 1.0, objective="cispo", clip_low=1.0)[1] == pytest.approx(-1e-3)


@pytest.mark.parametrize(
    ("probability", "advantage", "kept"),
    [
        # mu = 0.5, clip low 0.2, high 0.1: a good token may reach 0.6, a bad one may fall to 0.3.
        (0.59, 0.5, True),
        (0.61, 0.5, False),
        (0.2, 0.5, True),  # a good token that fell is pulled back
        (0.31, -0.5, True),
        (0.29, -0.5, False),
        (0.9, -0.5, True),
        (0.9, 0.0, True),  # neither good nor bad: nothing to mask
        (0.2, 0.0, True),
    ],
)
def test_dppo(probability: float, advantage: float, kept: bool) -> None:
    """-A pi / mu against the sampler, whatever l_old is (-1 here), and 0 where the probability moved too far."""
    ratio = probability / math.exp(-1.0)
    value, slope, metrics = token_loss(
        ratio, advantage, sampler=math.log(0.5), objective="dppo", clip_low=0.2, clip_high=0.1
    )
    expected = -advantage * probability / 0.5 if kept else 0.0
    assert value == pytest.approx(expected)
    assert slope == pytest.approx(expected)  # d(pi / mu) / dl = pi / mu
    assert metrics["clip_low"] + metrics["clip_high"] == (0 if kept else 1)


def test_dppo_is_not_weighed_again() -> None:
    """The ratio is to the sampler: an importance weight on top would count the distance twice."""
    weighed = PolicyLossConfig(objective="dppo", clip_low=0.9, clip_high=0.9)
    log_probs, sampler = torch.tensor([-1.0]), torch.tensor([-1.5])
    output = policy_loss(log_probs, torch.ones(1), torch.ones(1), ONE, weighed, sampler_log_probs=sampler)
    assert not weighed.weighs_importance
    assert output.loss.item() == pytest.approx(-math.exp(0.5))
    with pytest.raises(ValueError, match="dppo"):
        policy_loss(log_probs, torch.ones(1), torch.ones(1), ONE, weighed)


def test_reinforce() -> None:
    value, slope, _ = token_loss(2.0, 3.0, objective="reinforce")
    assert value == pytest.approx(-3.0 * (math.log(2.0) - 1.0))
    assert slope == pytest.approx(-3.0)


# Sequence 0: l - l_old = ln 1.5, ln 1.2, ln 1.0, mean (ln 1.8) / 3, s = 1.8^(1/3) = 1.21644; A = 2.
# Sequence 1: l - l_old = ln 0.5, ln 0.9, mean (ln 0.45) / 2, s = 0.45^(1/2) = 0.67082; A = -1.
OLD = torch.tensor([[-1.0, -2.0, -0.5], [-0.7, -0.3, -9.0]], dtype=torch.float64)
MOVED = torch.log(torch.tensor([[1.5, 1.2, 1.0], [0.5, 0.9, 7.0]], dtype=torch.float64))
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
ADVANTAGES = torch.tensor([2.0, -1.0], dtype=torch.float64)
S0, S1 = 1.8 ** (1 / 3), 0.45**0.5


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "losses", "gradients"),
    [
        # Wide: nothing is clipped. Per sequence mean of -A s over its tokens is -A s; d/dl_t = -A s / len.
        (0.9, 0.9, (-2 * S0, S1), (-2 * S0 / 3, S1 / 2)),
        # 1.216 > 1.1 with A > 0 and 0.671 < 0.8 with A < 0: both clipped, no gradient.
        (0.2, 0.1, (-2 * 1.1, 0.8), (0.0, 0.0)),
        # Only the second is.
        (0.2, 0.3, (-2 * S0, 0.8), (-2 * S0 / 3, 0.0)),
    ],
)
def test_gspo(
    flat: bool, low: float, high: float, losses: tuple[float, float], gradients: tuple[float, float]
) -> None:
    log_probs = (OLD + MOVED).requires_grad_()
    config = PolicyLossConfig(
        objective="gspo", aggregation="sequenceMean", clip_low=low, clip_high=high, importance=OFF
    )
    counts = LossDenominators.from_lengths([3, 2])
    kept = MASK.bool()
    ids = torch.tensor([[0] * 3, [1] * 3])
    if flat:
        token_advantages = ADVANTAGES.unsqueeze(1).expand(2, 3)[kept]
        output = policy_loss(
            log_probs[kept],
            token_advantages,
            torch.ones(5),
            counts,
            config,
            old_log_probs=OLD[kept],
            sequence_ids=ids[kept],
        )
    else:
        output = policy_loss(log_probs, ADVANTAGES, MASK, counts, config, old_log_probs=OLD)
    (gradient,) = torch.autograd.grad(output.loss, log_probs)
    assert output.loss.item() == pytest.approx(sum(losses) / 2)
    expected = torch.tensor([[gradients[0]] * 3, [gradients[1]] * 2 + [0.0]], dtype=torch.float64) / 2
    torch.testing.assert_close(gradient, expected)


def test_gspo_has_the_gradient_of_a_sequence_ratio() -> None:
    """GSPO itself, -A s with s the geometric mean of the ratios, differentiated whole."""
    log_probs = (OLD + MOVED).requires_grad_()
    config = PolicyLossConfig(
        objective="gspo", aggregation="sequenceMean", clip_low=0.9, clip_high=0.9, importance=OFF
    )
    output = policy_loss(
        log_probs, ADVANTAGES, MASK, LossDenominators.from_lengths([3, 2]), config, old_log_probs=OLD
    )
    ratio = torch.exp(((log_probs - OLD) * MASK).sum(1) / MASK.sum(1))
    whole = -(ADVANTAGES * ratio).mean()
    ours, theirs = (torch.autograd.grad(loss, log_probs)[0] for loss in (output.loss, whole))
    torch.testing.assert_close(output.loss, whole)
    torch.testing.assert_close(ours, theirs)


def test_a_users_objective_gets_everything_and_is_summed_like_the_others() -> None:
    """-A l / 2 on every token: half of REINFORCE, whatever the padding holds."""
    seen: list[LossInputs] = []

    def half(inputs: LossInputs) -> torch.Tensor:
        seen.append(inputs)
        return -0.5 * inputs.advantages * inputs.log_probs / inputs.trained  # NaN outside the mask

    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    own, plain = (
        policy_loss(
            log_probs,
            torch.tensor([1.0, -2.0]),
            mask,
            LossDenominators.from_lengths([2, 1]),
            config,
            sampler_log_probs=log_probs.detach() - 0.1,
        )
        for config in (PolicyLossConfig(user_objective=half), PolicyLossConfig(objective="reinforce"))
    )
    assert own.loss.item() == pytest.approx(plain.loss.item() / 2)
    assert seen[0].old_log_probs.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]
    assert seen[0].sampler_log_probs is not None
    assert torch.equal(seen[0].ratio().detach(), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("returned", "words"),
    [(torch.zeros(()), "()"), (torch.zeros(3), "(3,)"), (1.0, "float"), (None, "NoneType")],
)
def test_a_users_objective_that_returns_something_else_is_named(returned: Any, words: str) -> None:
    config = PolicyLossConfig(importance=OFF, user_objective=lambda inputs: returned)
    sentence = f"the function returned {words}, allowed: a tensor of one loss per token, here (2,)"
    with pytest.raises(ObjectiveError, match=re.escape(sentence)):
        policy_loss(torch.zeros(2), torch.zeros(2), torch.ones(2), ONE, config)
