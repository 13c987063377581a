"""The critic's loss: a pure function in sum form with global denominators, as `losses` explains."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.losses import Aggregation, aggregation_weights
from rl_trainer.algorithms.tokens import masked


class ValueLossOutput(NamedTuple):
    """The loss in sum form (scalar, with gradient), and the number of trained tokens whose loss takes the clip."""

    loss: Tensor
    clipped_tokens: Tensor


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    denominators: LossDenominators,
    *,
    clip: float | None = 0.2,
    aggregation: Aggregation = "tokenMean",
    sequence_ids: Tensor | None = None,
) -> ValueLossOutput:
    """`1/2 max((V - R)^2, (clamp(V, V_old - clip, V_old + clip) - R)^2)` per token (PPO's implementation; OpenAI baselines).

    A value may thus not run away from what it was before the batch's first update. `clip` None: `1/2 (V - R)^2`.

    Args:
        values: V, [B, T] or [N], with gradient.
        old_values: V_old before the batch's first update, no gradient; the same shape.
        returns: R (`gae.gae`), the same shape.
        mask: the same shape, nonzero: trained token.
        denominators: over the global batch of this optimizer step.
        clip: half the width of the range, > 0.
        aggregation: see `losses.aggregation_weights`.
        sequence_ids: for flat `sequenceMean`.
    """
    trained = mask != 0
    value = masked(values, trained)
    target, old = masked(returns.detach(), trained), masked(old_values.detach(), trained)
    weights = aggregation_weights(trained, aggregation, denominators, sequence_ids, value.dtype)
    error = (value - target).square()
    clipped_tokens = torch.zeros_like(error, dtype=torch.bool)
    if clip is not None:
        limited = torch.minimum(torch.maximum(value, old - clip), old + clip)
        clipped_error = (limited - target).square()
        clipped_tokens = (clipped_error > error) & trained
        error = torch.maximum(error, clipped_error)
    return ValueLossOutput(0.5 * (weights * error).sum(), clipped_tokens.sum().to(value.dtype).detach())
