"""Losses of the learner: pure functions of tensors, in fp32, with denominators that are global.

Notation, per token: `l` log-prob under the policy being trained (carries the gradient), `l_old` under the
policy as it was before this batch's first update, `l_mu` as the sampler reported it, `l_ref` under the frozen
reference; `m` mask (1: trained token), `A` advantage, `sg` stop-gradient.

Sum form: every loss here is a sum over the tokens it is given, each with a weight that already holds the
denominator of the *whole* global batch. So losses and gradients of micro-batches and data-parallel ranks are
**added**, whatever the split; under a wrapper that averages gradients over R ranks (DDP, FSDP), multiply the
loss by R first.

Shapes: `[B, T]` padded, or `[N]` flat (only the trained tokens of several sequences); values under mask 0 may
be anything, NaN too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl_trainer.learner.loss_metrics import MAX_METRICS as MAX_METRICS
from rl_trainer.learner.loss_metrics import SUM_METRICS as SUM_METRICS
from rl_trainer.learner.loss_metrics import empty_metrics as empty_metrics
from rl_trainer.learner.loss_metrics import merge_metrics as merge_metrics
from rl_trainer.learner.loss_metrics import metric_means as metric_means
from rl_trainer.learner.loss_metrics import passes_ratio_bound as passes_ratio_bound
from rl_trainer.learner.token_log_probs import head_token_log_probs as head_token_log_probs
from rl_trainer.learner.token_log_probs import token_log_probs as token_log_probs

Aggregation = Literal["tokenMean", "sequenceMean", "constant"]
KlEstimator = Literal["k1", "k2", "k3"]

# exp(20) = 4.9e8: far past any clip or cap, and far from overflow.
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True)
class PolicyLossConfig:
    """The numbers of the policy loss; see `policy_loss` for what each does.

    Attributes:
        clip_low: the ratio is clipped below `1 - clip_low`.
        clip_high: the ratio is clipped above `1 + clip_high` (DAPO's "clip-higher" when larger than
            `clip_low`).
        aggregation: how token losses become one number, see `aggregation_weights`.
        kl_coefficient: weight of the KL term against the reference; 0 needs no reference.
        kl_estimator: which estimate is the KL term's value, see `kl_penalty`.
        kl_straight_through: give every estimator the gradient of KL(pi || reference), see `kl_penalty`.
        entropy_coefficient: weight of the entropy bonus (subtracted from the loss).
        importance_cap: upper bound of the weight between sampler and trainer; None: weight 1.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: Aggregation = "tokenMean"
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_straight_through: bool = True
    entropy_coefficient: float = 0.0
    importance_cap: float | None = 2.0


@dataclass(frozen=True)
class LossDenominators:
    """What the loss is divided by: counts over the whole batch of one optimizer step, all ranks.

    Attributes:
        tokens: trained tokens.
        sequences: sequences with at least one trained token (fully masked ones leave the count).
        constant_length: the fixed length of the `constant` aggregation (Dr. GRPO: the most new tokens
            allowed).
    """

    tokens: int
    sequences: int
    constant_length: int | None = None

    @classmethod
    def from_lengths(
        cls, trained_tokens: Iterable[int], constant_length: int | None = None
    ) -> LossDenominators:
        """Count from the number of trained tokens of every sequence of the batch."""
        counts = list(trained_tokens)
        return cls(sum(counts), sum(count > 0 for count in counts), constant_length)

    def __add__(self, other: LossDenominators) -> LossDenominators:
        """The denominators of two parts of a batch together."""
        if self.constant_length != other.constant_length:
            raise ValueError(f"constant lengths differ: {self.constant_length} and {other.constant_length}")
        return LossDenominators(
            self.tokens + other.tokens, self.sequences + other.sequences, self.constant_length
        )


class LossOutput(NamedTuple):
    """A loss in sum form (scalar, with gradient) and its metrics (detached scalars, see
    `loss_metrics.SUM_METRICS`)."""

    loss: Tensor
    metrics: dict[str, Tensor]


def aggregation_weights(
    mask: Tensor, aggregation: Aggregation, denominators: LossDenominators, sequence_ids: Tensor | None = None
) -> Tensor:
    """Weight of every token: `sum(weights * token losses)` over the global batch is the aggregated loss.

    - `tokenMean` (DAPO): `m / tokens`. Every token counts the same; long answers weigh more.
    - `sequenceMean` (GRPO): `m / (tokens of its sequence * sequences)`. Every answer counts the same.
    - `constant` (Dr. GRPO): `m / (constant_length * sequences)`. As tokenMean, with a denominator free of the
      lengths sampled.

    Args:
        mask: [B, T] or [N], nonzero: trained token.
        aggregation: one of the three.
        denominators: counts over the global batch.
        sequence_ids: [N] small non-negative integers, the sequence of each token; for flat masks with
            `sequenceMean`.

    Returns:
        float32 weights of the shape of `mask`, 0 where it is 0, and all 0 for a batch without trained tokens.

    Raises:
        ValueError: `constant` without a length, flat `sequenceMean` without ids, or an unknown aggregation.
    """
    weights = (mask != 0).float()
    if aggregation == "tokenMean":
        return weights / max(1, denominators.tokens)
    if aggregation == "constant":
        if not denominators.constant_length:
            raise ValueError("aggregation 'constant' needs denominators.constant_length")
        return weights / (max(1, denominators.sequences) * denominators.constant_length)
    if aggregation == "sequenceMean":
        if mask.dim() == 2:
            lengths = weights.sum(dim=1, keepdim=True)
        elif sequence_ids is None:
            raise ValueError("aggregation 'sequenceMean' over flat tokens needs sequence_ids")
        else:
            ids = sequence_ids.long()
            totals = weights.new_zeros(int(ids.max()) + 1 if ids.numel() else 0)
            lengths = totals.index_add(0, ids, weights)[ids]
        return weights / (lengths.clamp(min=1.0) * max(1, denominators.sequences))
    raise ValueError(f"aggregation is {aggregation!r}, must be tokenMean, sequenceMean or constant")


def kl_penalty(
    log_probs: Tensor, reference_log_probs: Tensor, estimator: KlEstimator, straight_through: bool = True
) -> Tensor:
    """Per-token estimate of KL(pi || reference) on tokens sampled from pi, to be used as a loss.

    With `d = l_ref - l` (Schulman, "Approximating KL divergence", 2020):

    | | value | plain gradient | its expectation, on-policy |
    |---|---|---|---|
    | k1 | `-d` (unbiased, can be negative) | `grad l` | 0: no pull at all |
    | k2 | `d^2 / 2` (biased, >= 0) | `-d grad l` | that of KL(pi, ref) |
    | k3 | `exp(d) - d - 1` (unbiased, >= 0) | `(1 - exp(d)) grad l` | that of KL(ref, pi), the other way |

    So the estimator that is a good *value* is not the one with the right *gradient*. `straight_through`
    (default; the choice behind `kl.estimator` of a run) keeps the chosen estimator's value and gives all
    three k2's gradient: `k2 + sg(value - k2)`, verl's "k3+". With False the plain gradient flows (k3: as
    DeepSeekMath and TRL have it).

    `d` is limited to at most 20 inside k3's exponential (and has no plain gradient there); k1 and k2 need no
    limit.

    Args:
        log_probs: l, any shape. reference_log_probs: the same shape, no gradient.
        estimator: k1, k2 or k3.
        straight_through: see above.

    Returns:
        Estimates of the shape of `log_probs`.
    """
    difference = reference_log_probs.detach() - log_probs
    squared = 0.5 * difference.square()
    if estimator == "k1":
        value = -difference
    elif estimator == "k2":
        return squared
    elif estimator == "k3":
        limited = difference.clamp(max=LOG_RATIO_LIMIT)
        value = limited.expm1() - limited
    else:
        raise ValueError(f"estimator is {estimator!r}, must be k1, k2 or k3")
    return squared + (value - squared).detach() if straight_through else value


def importance_weights(old_log_probs: Tensor, sampler_log_probs: Tensor, cap: float) -> Tensor:
    """Truncated importance weight per token: `sg(min(exp(l_old - l_mu), cap))`, in (0, cap].

    Corrects for sampler and trainer disagreeing about the same tokens: other kernels, other precision, older
    weights (truncated importance sampling, Ionides 2008; for this use: Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy training"). Shapes: both inputs and the result alike.
    """
    return _limited_exp(old_log_probs.detach() - sampler_log_probs.detach()).clamp(max=cap)


def policy_loss(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    denominators: LossDenominators,
    config: PolicyLossConfig,
    *,
    old_log_probs: Tensor | None = None,
    sampler_log_probs: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> LossOutput:
    """Clipped policy loss (PPO, arXiv 1707.06347) with truncated importance weights, KL and entropy terms.

    Per token, with `r = exp(clamp(l - l_old, -20, 20))`, summed with `aggregation_weights`:

        w * max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
            + kl_coefficient * w_kl * kl - entropy_coefficient * H

    - `w = sg(min(exp(l_old - l_mu), cap))`: the decoupled objective (arXiv 2110.00641; AReaL, arXiv
      2505.24298): the sampler's distance is in `w`, the updates' distance in `r`, and neither in both.
    - Without `old_log_probs` (one update per batch, nothing recomputed) `l_old` is `sg(l)`: `r` is 1, no
      token is clipped, the gradient is `-w A grad l`. With several updates per batch pass the log-probs from
      before the first. Passing the sampler's as `old_log_probs` gives `w = 1` and classic PPO against the
      sampler.
    - `w_kl = sg(min(exp(l - l_mu), cap))` moves the KL term from the sampler's tokens to the policy's (1
      on-policy).
    - With `importance_cap` None both weights are 1.

    Args:
        log_probs: [B, T] or [N], with gradient, at the sampling temperature.
        advantages: the same shape, or [B] for [B, T] (one per sequence).
        mask: the same shape as `log_probs`; nonzero: trained token.
        denominators: over the global batch of this optimizer step.
        config: the numbers.
        old_log_probs, sampler_log_probs, reference_log_probs, entropy: the shape of `log_probs`; only
            `entropy` may carry a gradient.
        sequence_ids: for flat `sequenceMean`, see `aggregation_weights`.

    Returns:
        The loss in sum form and all metrics of `loss_metrics` (those without input are 0, with 0 tokens).

    Raises:
        ValueError: something the configuration needs was not given.
    """
    if config.importance_cap is not None and sampler_log_probs is None:
        raise ValueError("importance_cap is set, so sampler_log_probs is needed")
    if config.kl_coefficient != 0.0 and reference_log_probs is None:
        raise ValueError("kl_coefficient is not 0, so reference_log_probs is needed")
    if config.entropy_coefficient != 0.0 and entropy is None:
        raise ValueError("entropy_coefficient is not 0, so entropy is needed")

    trained = mask != 0
    weights = aggregation_weights(trained, config.aggregation, denominators, sequence_ids)
    current = _masked(log_probs, trained)
    frozen = current.detach()
    old = frozen if old_log_probs is None else _masked(old_log_probs.detach(), trained)
    advantage = _masked(
        (advantages.unsqueeze(-1) if advantages.dim() < log_probs.dim() else advantages).expand_as(log_probs),
        trained,
    )
    tokens = trained.sum().float()
    metrics = empty_metrics(log_probs.device)
    metrics["tokens"] = tokens

    log_ratio = (current - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    unclipped = -advantage * ratio
    clipped = -advantage * ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    token_loss = torch.maximum(unclipped, clipped)
    with torch.no_grad():
        takes_clip = (clipped > unclipped) & trained
        metrics["clip_low"] = (takes_clip & (advantage < 0)).sum().float()
        metrics["clip_high"] = (takes_clip & (advantage > 0)).sum().float()
        metrics["ratio"] = (ratio * trained).sum()
        metrics["ratio_max"] = (ratio * trained).amax() if ratio.numel() else metrics["ratio_max"]
        metrics["update_k3"] = (log_ratio.expm1() - log_ratio).sum()

    kl_weight: Tensor | float = 1.0
    if sampler_log_probs is not None:
        sampler = _masked(sampler_log_probs.detach(), trained)
        metrics.update(_mismatch_metrics(old, sampler, trained, tokens))
        if config.importance_cap is not None:
            importance = importance_weights(old, sampler, config.importance_cap)
            kl_weight = importance_weights(frozen, sampler, config.importance_cap)
            token_loss = importance * token_loss
            metrics["importance"] = (importance * trained).sum()
            metrics["importance_truncated"] = ((importance >= config.importance_cap) & trained).sum().float()

    loss = (weights * token_loss).sum()
    metrics["policy_loss"] = loss.detach()
    if reference_log_probs is not None:
        reference = _masked(reference_log_probs.detach(), trained)
        kl = kl_penalty(current, reference, config.kl_estimator, config.kl_straight_through)
        metrics["kl_tokens"], metrics["kl"] = tokens, kl.detach().sum()
        if config.kl_coefficient != 0.0:
            loss = loss + config.kl_coefficient * (weights * kl_weight * kl).sum()
    if entropy is not None:
        token_entropy = _masked(entropy, trained)
        metrics["entropy_tokens"], metrics["entropy"] = tokens, token_entropy.detach().sum()
        if config.entropy_coefficient != 0.0:
            loss = loss - config.entropy_coefficient * (weights * token_entropy).sum()
    metrics["loss"] = loss.detach()
    return LossOutput(loss, metrics)


def supervised_loss(log_probs: Tensor, mask: Tensor, denominators: LossDenominators) -> LossOutput:
    """Negative log-likelihood for the warm start, token mean over the global batch: `-sum(m l) / tokens`.

    Args:
        log_probs: [B, T] or [N], with gradient. mask: the same shape. denominators: over the global batch.

    Returns:
        The loss in sum form; of the metrics only `loss` and `tokens` are not 0.
    """
    trained = mask != 0
    weights = aggregation_weights(trained, "tokenMean", denominators)
    loss = -(weights * _masked(log_probs, trained)).sum()
    measured = {"loss": loss.detach(), "tokens": trained.sum().float()}
    return LossOutput(loss, {**empty_metrics(log_probs.device), **measured})


def _masked(values: Tensor, trained: Tensor) -> Tensor:
    """fp32 values, 0 outside the mask. A `where`, not a product: 0 * NaN is NaN, in the gradient too."""
    return torch.where(trained, values.float(), 0.0)


def _limited_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _mismatch_metrics(old: Tensor, sampler: Tensor, trained: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        delta = (old - sampler).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return {
            "mismatch_tokens": tokens,
            "mismatch_k3": (delta.expm1() - delta).sum(),
            "mismatch_exp_abs": (delta.abs().exp() * trained).sum(),
            "importance": tokens,
        }
