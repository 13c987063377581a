"""Rows of attention's heads in the two orders that they have: Hugging Face's, and that in which our decoder computes."""

from __future__ import annotations

from torch import Tensor


def interleaved(rows: Tensor, head_dim: int) -> Tensor:
    """See `interleave`; a view where there is one, [heads, head_dim / 2, 2, ...]."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2)


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Hugging Face's order of a head's rows (first halves, then second halves) to neighbours; [N * D, ...] -> same."""
    return interleaved(rows, head_dim).reshape(rows.shape)


def deinterleave(rows: Tensor, head_dim: int) -> Tensor:
    """The inverse of `interleave`; a copy where that is another order."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
