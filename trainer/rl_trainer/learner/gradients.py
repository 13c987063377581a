"""Gradients of what one rank learns: a whole copy's in one buffer, or its rows of a copy that ranks share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from rl_trainer.model.rows import local


class Gradients(Protocol):
    """What a step does with gradients; all ranks do the same at the same time."""

    def zero(self) -> None:
        """Forgets them."""
        ...

    def add_up(self) -> None:
        """From now on they are the sums over all ranks."""
        ...

    def norm(self) -> float:
        """Of all of them together."""
        ...

    def scale(self, factor: float) -> None:
        """Multiplies all of them."""
        ...


class FlatGradients:
    """Each parameter's `.grad` is a view of one buffer, so that ranks exchange all of them in one collective.

    It stays one as long as nobody sets `.grad` to None.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int, device: torch.device):
        self._ranks = ranks
        sizes = [p.numel() for p in parameters]
        self._buffer = torch.zeros(sum(sizes), device=device)
        for parameter, part in zip(parameters, self._buffer.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            parameter.grad = part.view_as(parameter)

    def zero(self) -> None:
        """See `Gradients`."""
        self._buffer.zero_()

    def add_up(self) -> None:
        """See `Gradients`."""
        if self._ranks > 1:
            dist.all_reduce(self._buffer)

    def norm(self) -> float:
        """See `Gradients`."""
        return float(self._buffer.norm())

    def scale(self, factor: float) -> None:
        """See `Gradients`."""
        self._buffer.mul_(factor)


class DividedGradients:
    """Gradients that FSDP2 makes: every backward pass adds them up over the ranks, and each keeps its rows.

    `shard`: the process group of the ranks that share one copy.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], shard: Any):
        self._parameters, self._shard = parameters, shard

    def zero(self) -> None:
        """See `Gradients`."""
        for parameter in self._parameters:
            parameter.grad = None

    def add_up(self) -> None:
        """See `Gradients`: they are sums already. What no pass has used has zeros."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def norm(self) -> float:
        """See `Gradients`. Every row counts once, however many copies there are."""
        squares = [part.norm().square() for part in self._parts()]
        total = torch.stack(squares).sum(dtype=torch.float64)
        dist.all_reduce(total, group=self._shard)
        return math.sqrt(float(total)) if torch.isfinite(total) else math.nan

    def scale(self, factor: float) -> None:
        """See `Gradients`."""
        for part in self._parts():
            part.mul_(factor)

    def _parts(self) -> list[torch.Tensor]:
        return [local(parameter.grad) for parameter in self._parameters if parameter.grad is not None]
