"""What data-parallel ranks exchange in a step: gradients, in one flat buffer, and metrics. All ranks get the sums."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn


class FlatGradients:
    """The gradients of `parameters` in one buffer, so that ranks exchange them in one collective.

    Each parameter's `.grad` is a view of it from the start, and stays one as long as nobody sets it to None.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device):
        self._flat = torch.zeros(sum(p.numel() for p in parameters), device=device)
        offset = 0
        for parameter in parameters:
            parameter.grad = self._flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def zero(self) -> None:
        """Forgets them."""
        self._flat.zero_()

    def sum_over_ranks(self) -> None:
        """Adds those of all ranks. Every rank must call it."""
        dist.all_reduce(self._flat)

    def clip(self, limit: float) -> float:
        """Scales them to a norm of at most `limit`; the norm they had. One that is not a number changes nothing."""
        norm = float(self._flat.norm())
        if math.isfinite(norm) and norm > limit:
            self._flat.mul_(limit / norm)
        return norm


def metrics_over_ranks(
    metrics: Mapping[str, float], maxima: Collection[str], device: torch.device
) -> dict[str, float]:
    """The sum of each metric over all ranks, of those in `maxima` the largest. Every rank calls it, with the same names."""
    names = sorted(metrics)
    sums = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
    largest = sums.clone()
    sums, largest = sums.to(device), largest.to(device)
    dist.all_reduce(sums)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return {name: float(largest[i] if name in maxima else sums[i]) for i, name in enumerate(names)}
