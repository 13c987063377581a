"""Importance weights between the sampler's log-probs and the trainer's, and what they say of the two. Pure functions.

The sampler `mu` and the trainer disagree about the same tokens: other kernels, other precision, older weights. In the
notation of `losses`: `D = l_old - l_mu` per token. Everything here is detached; shapes are `[B, T]` padded or `[N]`
flat with `sequence_ids`, and inputs are 0 outside the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_trainer.algorithms.tokens import LOG_RATIO_LIMIT, limited_exp, sequence_means, sequence_sums

ImportanceKind = Literal["truncate", "mask", "none"]
ImportanceLevel = Literal["token", "sequence", "geometric"]

MISMATCH_LIMIT = 10.0
"""Most that one token adds to `mismatch_bounded`."""


@dataclass(frozen=True)
class ImportanceConfig:
    """Which weight corrects for the distance between sampler and trainer; see `importance_weights`.

    Attributes:
        kind: truncate (limit the weight to the bounds), mask (leave out what is outside them), none (weight 1).
        level: the weight's ratio: each token's, the product over its sequence, or that product's geometric mean.
        low: lower bound; None: none.
        high: upper bound.
    """

    kind: ImportanceKind = "truncate"
    level: ImportanceLevel = "token"
    low: float | None = None
    high: float = 2.0


def importance_ratios(
    old_log_probs: Tensor,
    sampler_log_probs: Tensor,
    trained: Tensor,
    level: ImportanceLevel,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """The ratio `rho` of every token, before any bound: `exp(clamp(x, -20, 20))`, in the shape of the inputs.

    - token: `x = D`;
    - sequence: `x = sum of D over the sequence`, the exact weight of the whole answer, of great variance;
    - geometric: `x = mean of D over the sequence`: no importance weight, but the same measure for long and short
      answers, where the product punishes length.

    Raises ValueError for flat tokens without ids at a level of sequences.
    """
    delta = (old_log_probs - sampler_log_probs).detach()
    if level == "token":
        return limited_exp(delta)
    delta = torch.where(trained, delta, 0.0)
    if level == "sequence":
        return limited_exp(sequence_sums(delta, sequence_ids))
    return limited_exp(sequence_means(delta, trained, sequence_ids))


def importance_weights(
    old_log_probs: Tensor,
    sampler_log_probs: Tensor,
    trained: Tensor,
    config: ImportanceConfig,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """Factor of every token's loss, without gradient.

    With `rho` of `importance_ratios` and the bounds [low, high]:

    - truncate: `clamp(rho, low, high)`. Truncated importance sampling (Ionides 2008; between sampler and trainer: Yao
      et al. 2025, "Your efficient RL framework secretly brings you off-policy training"); low is usually None.
    - mask: `rho` inside the bounds, 0 outside them (at token level "IcePop"; at sequence level the answer is left out
      as a whole); at level geometric 1 and 0: the geometric mean decides who is left out, and is no weight.
    - none: 1.

    What is masked stays in the denominators: leaving tokens out does not make the others count more.

    Args:
        old_log_probs, sampler_log_probs: [B, T] or [N].
        trained: bool, the same shape.
        config: kind, level, bounds.
        sequence_ids: [N], for flat tokens at a level of sequences.

    Returns:
        Weights of the same shape; what they are outside the mask does not matter. Errors: see `importance_ratios`.
    """
    if config.kind == "none":
        return torch.ones_like(old_log_probs)
    ratios = importance_ratios(old_log_probs, sampler_log_probs, trained, config.level, sequence_ids)
    if config.kind == "truncate":
        return ratios.clamp(min=config.low, max=config.high)
    outside = outside_bounds(ratios, config)
    return torch.where(outside, 0.0, torch.ones_like(ratios) if config.level == "geometric" else ratios)


def outside_bounds(ratios: Tensor, config: ImportanceConfig) -> Tensor:
    """Where a ratio is below `low` or above `high`: these tokens are truncated or masked. Bool."""
    above = ratios > config.high
    return above if config.low is None else above | (ratios < config.low)


def mismatch_metrics(old_log_probs: Tensor, sampler_log_probs: Tensor, trained: Tensor) -> dict[str, Tensor]:
    """How far sampler and trainer are apart, as sums over the trained tokens (`loss_metrics.SUM_METRICS`).

    `mismatch_tokens`: their number; `mismatch_ratio_sum`: of `exp(D)`, whose mean is 1 when mu covers the policy;
    `mismatch_k3`: of `exp(D) - D - 1`, whose mean estimates KL(mu || pi_old); `mismatch_exp_abs`: of `exp|D|`;
    `mismatch_bounded`: of the same, at most MISMATCH_LIMIT of one token.
    """
    with torch.no_grad():
        delta = (old_log_probs - sampler_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        tokens = trained.sum().to(delta.dtype)
        growth = (delta.expm1() * trained).sum()
        return {
            "mismatch_tokens": tokens,
            "mismatch_ratio_sum": growth + tokens,
            "mismatch_k3": growth - (delta * trained).sum(),
            "mismatch_exp_abs": (delta.abs().exp() * trained).sum(),
            "mismatch_bounded": (delta.abs().exp().clamp(max=MISMATCH_LIMIT) * trained).sum(),
        }


def proximal_log_probs(log_probs: Tensor, sampler_log_probs: Tensor, staleness: Tensor) -> Tensor:
    """`l_old` of decoupled PPO without computing it: between the sampler's and the current log-prob.

    `l_mu + a sg(l - l_mu)` with `a = (v_prox - v_mu) / (v_pi - v_mu)`, where v_mu is the weight version that sampled
    the token, v_pi the one that this step is making, and v_prox = v_pi - 1 the one it started from. With `staleness`
    s = v_prox - v_mu that is `a = s / (s + 1)`: 0 for a token of the newest weights, whose l_old *is* l_mu. From
    AReaL's approximation of the proximal policy (docs/en/algorithms/prox_approx.md).

    Args:
        log_probs, sampler_log_probs: any shape.
        staleness: the same shape, versions that the learner is ahead of the token; below 0 counts as 0.

    Returns:
        The same shape, without gradient.
    """
    ages = staleness.clamp(min=0).to(log_probs.dtype)
    current, sampler = log_probs.detach(), sampler_log_probs.detach()
    return sampler + ages / (ages + 1.0) * (current - sampler)
