"""Sequences that several processes compute together: each has a part of the tokens, and in attention a part of the heads.

DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509): all of a layer but attention is computed token by token, and all of
attention head by head, so that two exchanges around attention are all that processes tell each other. Whatever computes
attention sees whole sequences: masks, windows and packed rows are what they are in one process. (torch 2.13's own context
parallelism is ring attention for the kernels flash, efficient and cuDNN of CUDA, without masks: it has none for CPUs, and
none for rows that sequences share.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_api.errors import ModelError
from rl_api.sizes.learner import uneven_heads
from rl_trainer.model.packing import Packing


@dataclass(frozen=True)
class Context:
    """C processes that share sequences, of which this one is number `rank`; `group`: their process group.

    All of them make every call together, with tensors of the same shapes.
    """

    group: Any
    size: int
    rank: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Context:
        return self  # a copy of a model belongs to the same processes

    def take(self, rows: Tensor) -> Tensor:
        """This process's rows of [N, ...]: [ceil(N / C), ...], those past the last one zeros."""
        each = -(-len(rows) // self.size)
        own = rows[self.rank * each : (self.rank + 1) * each]
        return F.pad(own, (0, 0) * (rows.ndim - 1) + (0, each - len(own)))

    def own(self, rows: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Which of `rows` [M] of `total` are this process's, bool [M]; and where these are in what `take` gives."""
        each = -(-total // self.size)
        found = rows // each == self.rank
        return found, rows[found] - self.rank * each

    def check_heads(self, heads: int, kv_heads: int) -> None:
        """Raises ModelError where a model's attention heads, of queries or of keys and values, do not divide evenly."""
        problem = uneven_heads(self.size, heads, kv_heads)
        if problem is not None:
            raise ModelError(problem)

    def to_heads(self, tokens: Tensor) -> Tensor:
        """From all heads of own tokens [n, C, W], those of each process together, to own heads of all tokens [C n, W]."""
        return self._exchange(tokens.transpose(0, 1)).flatten(0, 1)

    def to_tokens(self, heads: Tensor) -> Tensor:
        """The inverse, [C n, W] -> [n, C W]."""
        parts = heads.unflatten(0, (self.size, -1))  # type: ignore[no-untyped-call]
        return self._exchange(parts).transpose(0, 1).flatten(1)

    def joined(self, values: Tensor, own: Tensor) -> Tensor:
        """What all processes found, [..., M], of own values [..., m]; `own` bool [M]: which these are.

        Every process goes on to compute the same of them, so each one's gradient is that of its own values.
        """
        joined: Tensor = _Joined.apply(values, own, self.group)  # type: ignore[no-untyped-call]
        return joined

    def _exchange(self, parts: Tensor) -> Tensor:
        exchanged: Tensor = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return exchanged


@dataclass(frozen=True)
class SplitPacking:
    """`Packing` where each process has a part of the N tokens only: n = ceil(N / C) of them.

    Attributes:
        packing: of the whole batch.
        context: the processes.
        widths: of queries, keys and values of a token, all heads together; each is divided evenly between processes.
    """

    packing: Packing
    context: Context
    widths: tuple[int, int, int]

    def spread(self, tokens: Tensor) -> Tensor:
        """Projections of own tokens [n, Q + 2 K] at all their places, of own heads: [B, T, (Q + 2 K) / C]."""
        parts = tokens.split(self.widths, dim=1)  # type: ignore[no-untyped-call]
        by_process = torch.cat([part.unflatten(1, (self.context.size, -1)) for part in parts], dim=2)
        return self.packing.spread(self.context.to_heads(by_process)[: len(self.packing.to_packed)])

    def gather(self, places: Tensor) -> Tensor:
        """What attention gives for own heads at all places [B, T, Q / C], of own tokens: [n, Q]."""
        tokens = self.packing.gather(places)
        return self.context.to_tokens(F.pad(tokens, (0, 0, 0, -len(tokens) % self.context.size)))


class _Exchange(torch.autograd.Function):
    """Part i of each process goes to process i, [C, ...] -> [C, ...]: its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grad, ctx.group), None


def _exchanged(parts: Tensor, group: Any) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, own: Tensor, group: Any) -> Tensor:
        ctx.own = own
        joined = values.new_zeros(*values.shape[:-1], len(own))
        joined[..., own] = values
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[..., ctx.own], None, None
