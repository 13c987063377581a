"""Per-token tensors, padded `[B, T]` or flat: their number format, their mask, and sums over a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

# exp(20) = 4.9e8: far past any clip or bound, and far from overflow.
LOG_RATIO_LIMIT = 20.0


def working_precision(values: Tensor) -> Tensor:
    """float64 as it is, everything else as float32: what all losses compute in."""
    return values if values.dtype == torch.float64 else values.float()


def masked(values: Tensor, trained: Tensor) -> Tensor:
    """Values in working precision, 0 outside the mask. A `where`, not a product: 0 * NaN is NaN, in the gradient too.

    Args:
        values: any shape. trained: bool, the same shape.
    """
    return torch.where(trained, working_precision(values), 0.0)


def limited_exp(log_ratio: Tensor) -> Tensor:
    """`exp(clamp(x, -20, 20))`, without gradient where the limit holds."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_sums(values: Tensor, sequence_ids: Tensor | None = None) -> Tensor:
    """For every token the sum of `values` over its sequence.

    Args:
        values: [B, T] (each row a sequence), or any shape with `sequence_ids`.
        sequence_ids: the shape of `values`, small non-negative integers: the sequence of each token. Needed for flat
            values, and for rows that hold several sequences.

    Returns:
        The shape of `values`.

    Raises:
        ValueError: flat values without ids.
    """
    if sequence_ids is None:
        if values.dim() != 2:
            raise ValueError("sums over the sequences of flat tokens need sequence_ids")
        return values.sum(dim=1, keepdim=True).expand_as(values)
    ids = sequence_ids.reshape(-1).long()
    totals = values.new_zeros(int(ids.max()) + 1 if ids.numel() else 0)
    return totals.index_add(0, ids, values.reshape(-1))[ids].view_as(values)


def sequence_means(values: Tensor, trained: Tensor, sequence_ids: Tensor | None = None) -> Tensor:
    """For every token the mean of `values` over the trained tokens of its sequence; 0 where there is none.

    Args:
        values: as in `sequence_sums`, 0 outside the mask. trained: bool, the same shape.
        sequence_ids: as in `sequence_sums`.
    """
    counts = sequence_sums(trained.to(values.dtype), sequence_ids)
    return sequence_sums(values, sequence_ids) / counts.clamp(min=1.0)
