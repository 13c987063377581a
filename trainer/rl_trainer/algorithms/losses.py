"""Losses of the learner: pure functions of tensors, with denominators that are global.

The objectives themselves are in `policy_losses`, the weights between sampler and trainer in `importance`, the
critic's loss in `value_loss`; here they become one number.

Notation, per token: `l` log-prob under the policy being trained (carries the gradient), `l_old` under the
proximal policy: as it was before this batch's first update, `l_mu` as the sampler reported it, `l_ref` under the frozen
reference; `m` mask (1: trained token), `A` advantage, `sg` stop-gradient.

Sum form: every loss here is a sum over the tokens it is given, each with a weight that already holds the
denominator of the *whole* global batch. So losses and gradients of micro-batches and data-parallel ranks are
**added**, whatever the split; under a wrapper that averages gradients over R ranks (DDP, FSDP), multiply the
loss by R first.

Shapes: `[B, T]` padded, or `[N]` flat (only the trained tokens of several sequences); values under mask 0 may
be anything, NaN too. Everything is computed in fp32, or in fp64 where the log-probs are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl_api.errors import ObjectiveError
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import (
    ImportanceConfig,
    importance_ratios,
    importance_weights,
    mismatch_metrics,
    outside_bounds,
    proximal_log_probs,
)
from rl_trainer.algorithms.loss_metrics import empty_metrics
from rl_trainer.algorithms.policy_losses import (
    LossInputs,
    Objective,
    TokenLosses,
    UserObjective,
    token_losses,
)
from rl_trainer.algorithms.reward_shaping import KlEstimator
from rl_trainer.algorithms.tokens import LOG_RATIO_LIMIT, masked, sequence_sums

Aggregation = Literal["tokenMean", "sequenceMean", "sequenceSum", "constant"]


@dataclass(frozen=True)
class PolicyLossConfig:
    """The choices of the policy loss; see `policy_loss` for what each does.

    Attributes:
        objective: name of the objective, one of `policy_losses`.
        user_objective: a user's own, instead of it.
        clip_low: lower clip width: the ratio is clipped below `1 - clip_low` (dppo: see there).
        clip_high: upper clip width (DAPO's "clip-higher" when larger than `clip_low`).
        dual_clip: second bound of ppoClip for negative advantages; None: none.
        aggregation: how token losses become one number, see `aggregation_weights`.
        kl_coefficient: weight of the KL term against the reference; 0 needs no reference.
        kl_estimator: which estimate is the KL term's value, see `kl_penalty`.
        kl_straight_through: give every estimator the gradient of KL(pi || reference), see `kl_penalty`.
        entropy_coefficient: weight of the entropy bonus (subtracted from the loss).
        importance: weight between sampler and trainer.
        proximal: where `l_old` is from: recomputed (given, or the current policy's) or interpolated (decoupled PPO
            without a pass for it, see `importance.proximal_log_probs`).
    """

    objective: Objective = "ppoClip"
    user_objective: UserObjective | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "tokenMean"
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_straight_through: bool = True
    entropy_coefficient: float = 0.0
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    proximal: Literal["recomputed", "interpolated"] = "recomputed"

    @property
    def entropy_learns(self) -> bool:
        """Whether the entropy's gradient may be asked for; a user's objective gets it with the other inputs."""
        return self.entropy_coefficient != 0.0 or self.user_objective is not None

    @property
    def weighs_importance(self) -> bool:
        """Whether an importance weight is applied. The ratio of dppo is to the sampler: it holds the weight already."""
        own = self.objective == "dppo" and self.user_objective is None
        return self.importance.kind != "none" and not own


class LossOutput(NamedTuple):
    """A loss in sum form (scalar, with gradient) and its metrics (detached scalars, see `loss_metrics.SUM_METRICS`)."""

    loss: Tensor
    metrics: dict[str, Tensor]


def aggregation_weights(
    mask: Tensor,
    aggregation: Aggregation,
    denominators: LossDenominators,
    sequence_ids: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weight of every token: `sum(weights * token losses)` over the global batch is the aggregated loss.

    - `tokenMean` (DAPO): `m / tokens`. Every token counts the same; long answers weigh more.
    - `sequenceMean` (GRPO): `m / (tokens of its sequence * sequences)`. Every answer counts the same.
    - `sequenceSum` (REINFORCE over whole answers): `m / sequences`. The log-prob of an answer is the sum over its
      tokens; long answers have large gradients.
    - `constant` (Dr. GRPO): `m / (constant_length * sequences)`. As sequenceSum, at the scale of a mean.

    Args:
        mask: [B, T] or [N], nonzero: trained token.
        aggregation: one of the four.
        denominators: counts over the global batch.
        sequence_ids: the shape of `mask`, small non-negative integers, the sequence of each token; for
            `sequenceMean` of flat tokens.
        dtype: of the weights.

    Returns:
        Weights of the shape of `mask`, 0 where it is 0, and all 0 for a batch without trained tokens.

    Raises:
        ValueError: `constant` without a length, or flat `sequenceMean` without ids.
    """
    weights = (mask != 0).to(dtype)
    if aggregation == "tokenMean":
        return weights / max(1, denominators.tokens)
    if aggregation == "sequenceSum":
        return weights / max(1, denominators.sequences)
    if aggregation == "constant":
        if not denominators.constant_length:
            raise ValueError("aggregation 'constant' needs denominators.constant_length")
        return weights / (max(1, denominators.sequences) * denominators.constant_length)
    lengths = sequence_sums(weights, sequence_ids)
    return weights / (lengths.clamp(min=1.0) * max(1, denominators.sequences))


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
    else:
        limited = difference.clamp(max=LOG_RATIO_LIMIT)
        value = limited.expm1() - limited
    return squared + (value - squared).detach() if straight_through else value


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
    staleness: Tensor | None = None,
) -> LossOutput:
    """The policy loss: objective, importance weights, KL and entropy terms, summed with `aggregation_weights`.

    Per token, with the objective's loss `o` (`policy_losses`):

        w * o + kl_coefficient * w_kl * kl - entropy_coefficient * H

    - `w` of `importance.importance_weights` between l_old and l_mu: the decoupled objective (arXiv 2110.00641; AReaL,
      arXiv 2505.24298): the sampler's distance is in `w`, the updates' distance in the objective's ratio, and
      neither in both. Truncated at token level (the default): `sg(min(exp(l_old - l_mu), high))`.
    - Without `old_log_probs` (one update per batch, nothing recomputed) `l_old` is `sg(l)`: `r` is 1, no
      token is clipped, the gradient is `-w A grad l`. With several updates per batch pass the log-probs from
      before the first. Passing the sampler's as `old_log_probs` gives `w = 1` and classic PPO against the
      sampler. With `proximal` interpolated `l_old` lies between l_mu and l.
    - `w_kl` is the same weight between l and l_mu: it moves the KL term from the sampler's tokens to the policy's (1
      on-policy).
    - With importance none both weights are 1.

    Args:
        log_probs: [B, T] or [N], with gradient, at the sampling temperature.
        advantages: the same shape, or [B] for [B, T] (one per sequence).
        mask: the same shape as `log_probs`; nonzero: trained token.
        denominators: over the global batch of this optimizer step.
        config: the choices.
        old_log_probs, sampler_log_probs, reference_log_probs, entropy: the shape of `log_probs`; only
            `entropy` may carry a gradient.
        sequence_ids: the shape of `log_probs`; for flat tokens where aggregation, objective or importance weight
            look at sequences, and for rows that hold several.
        staleness: the shape of `log_probs`, versions the learner is ahead of each token; for `proximal`
            interpolated.

    Returns:
        The loss in sum form and all metrics of `loss_metrics` (those without input are 0, with 0 tokens).

    Raises:
        ValueError: something the configuration needs was not given.
        ObjectiveError: the user's objective returned something else than token losses.
    """
    _check_given(config, sampler_log_probs, reference_log_probs, entropy, staleness)
    trained = mask != 0
    current = masked(log_probs, trained)
    weights = aggregation_weights(trained, config.aggregation, denominators, sequence_ids, current.dtype)
    frozen = current.detach()
    advantage = masked(
        (advantages.unsqueeze(1) if advantages.dim() < log_probs.dim() else advantages).expand_as(log_probs),
        trained,
    )

    def optional(values: Tensor | None) -> Tensor | None:
        return None if values is None else masked(values.detach(), trained)

    sampler, reference = optional(sampler_log_probs), optional(reference_log_probs)
    token_entropy = None if entropy is None else masked(entropy, trained)
    if config.proximal == "interpolated" and sampler is not None and staleness is not None:
        old = proximal_log_probs(current, sampler, staleness)
    else:
        old = frozen if old_log_probs is None else masked(old_log_probs.detach(), trained)
    inputs = LossInputs(current, old, advantage, trained, sampler, reference, token_entropy, sequence_ids)

    token_loss = _token_losses(inputs, config)
    tokens = trained.sum().to(current.dtype)
    metrics = empty_metrics(log_probs.device)
    metrics["tokens"] = tokens
    metrics.update(_update_metrics(inputs, token_loss))
    losses = token_loss.loss

    kl_weight: Tensor | float = 1.0
    if sampler is not None:
        metrics.update(mismatch_metrics(old, sampler, trained))
        metrics["importance"] = tokens
        if config.weighs_importance:
            importance = importance_weights(old, sampler, trained, config.importance, sequence_ids)
            kl_weight = importance_weights(frozen, sampler, trained, config.importance, sequence_ids)
            losses = importance * losses
            metrics.update(_importance_metrics(inputs, importance, config.importance))

    loss = (weights * losses).sum()
    metrics["policy_loss"] = loss.detach()
    if reference is not None:
        kl = kl_penalty(current, reference, config.kl_estimator, config.kl_straight_through)
        metrics["kl_tokens"], metrics["kl"] = tokens, kl.detach().sum()
        if config.kl_coefficient != 0.0:
            loss = loss + config.kl_coefficient * (weights * kl_weight * kl).sum()
    if token_entropy is not None:
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
    current = masked(log_probs, trained)
    loss = -(aggregation_weights(trained, "tokenMean", denominators, dtype=current.dtype) * current).sum()
    measured = {"loss": loss.detach(), "tokens": trained.sum().float()}
    return LossOutput(loss, {**empty_metrics(log_probs.device), **measured})


def _check_given(
    config: PolicyLossConfig,
    sampler_log_probs: Tensor | None,
    reference_log_probs: Tensor | None,
    entropy: Tensor | None,
    staleness: Tensor | None,
) -> None:
    if config.weighs_importance and sampler_log_probs is None:
        raise ValueError(f"importance is {config.importance.kind}, so sampler_log_probs is needed")
    if config.kl_coefficient != 0.0 and reference_log_probs is None:
        raise ValueError("kl_coefficient is not 0, so reference_log_probs is needed")
    if config.entropy_coefficient != 0.0 and entropy is None:
        raise ValueError("entropy_coefficient is not 0, so entropy is needed")
    if config.proximal == "interpolated" and (sampler_log_probs is None or staleness is None):
        raise ValueError("proximal is interpolated, so sampler_log_probs and staleness are needed")


def _token_losses(inputs: LossInputs, config: PolicyLossConfig) -> TokenLosses:
    if config.user_objective is None:
        return token_losses(config.objective, inputs, config.clip_low, config.clip_high, config.dual_clip)
    loss = config.user_objective(inputs)
    if not isinstance(loss, Tensor) or loss.shape != inputs.log_probs.shape:
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ObjectiveError(
            f"algorithm.name: the function returned {found}, allowed: a tensor of one loss per token, here "
            f"{tuple(inputs.log_probs.shape)}"
        )
    # What is outside the mask is nobody's loss, and 0 * NaN is NaN.
    return TokenLosses(torch.where(inputs.trained, loss, 0.0))


def _update_metrics(inputs: LossInputs, token_loss: TokenLosses) -> dict[str, Tensor]:
    """What this batch's updates have done so far."""
    trained = inputs.trained
    with torch.no_grad():
        log_ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = log_ratio.exp() * trained
        metrics = {"ratio": ratio.sum(), "update_k3": (log_ratio.expm1() - log_ratio).sum()}
        if ratio.numel():
            metrics["ratio_max"] = ratio.amax()
        for name, flags in (("clip_low", token_loss.clipped_low), ("clip_high", token_loss.clipped_high)):
            if flags is not None:
                metrics[name] = (flags & trained).sum().to(ratio.dtype)
        return metrics


def _importance_metrics(inputs: LossInputs, weights: Tensor, config: ImportanceConfig) -> dict[str, Tensor]:
    """The weights' sum, and how many tokens' ratio was outside the bounds."""
    assert inputs.sampler_log_probs is not None
    with torch.no_grad():
        ratios = importance_ratios(
            inputs.old_log_probs, inputs.sampler_log_probs, inputs.trained, config.level, inputs.sequence_ids
        )
        clipped = outside_bounds(ratios, config) & inputs.trained
        return {
            "importance": (weights * inputs.trained).sum(),
            "importance_clipped": clipped.sum().to(weights.dtype),
        }
