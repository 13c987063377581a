"""Tokens of a padded batch without its padding, and without the prompts that its rows have in common.

Products of a layer run over the N tokens that are left, attention over all B * T places. Answers to one prompt share the
hidden states of the prompt, so with G answers to a prompt of P tokens only P of its G * P tokens are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Packing:
    """Which token stands at which place of a right-padded batch, and where each token stands first.

    Attributes:
        shape: (B, T).
        to_padded: int64 [B * T], the token at each place; padding takes token 0, which is as good as any: nothing
            that is kept sees it.
        to_packed: int64 [N], the first place of each token.
        repeats: int64 [R], the places of tokens that stand earlier as well.
    """

    shape: tuple[int, int]
    to_padded: torch.Tensor
    to_packed: torch.Tensor
    repeats: torch.Tensor

    @classmethod
    def of(
        cls, attention_mask: torch.Tensor, shared: torch.Tensor | None = None, *, always: bool = False
    ) -> Packing | None:
        """The packing of a batch; None where every place has a token of its own, unless `always`.

        Args:
            attention_mask: [B, T], padding after the tokens, at least one token in each row.
            shared: int64 [B, 2]: row r begins with the same `shared[r, 1]` tokens as row `shared[r, 0]`, which is not
                after r and has them for its own; None: no row shares anything.
        """
        batch, length = attention_mask.shape
        present = attention_mask.flatten() != 0
        own = present
        places = torch.arange(batch * length, device=present.device)
        first = places
        if shared is not None:
            column = places % length
            repeated = present & (column < shared[:, 1].repeat_interleave(length))
            first = torch.where(repeated, shared[:, 0].repeat_interleave(length) * length + column, places)
            own = present & (first == places)
        to_packed = own.nonzero().squeeze(1)
        if len(to_packed) == len(places) and not always:
            return None
        token = torch.zeros_like(places)
        token[to_packed] = torch.arange(len(to_packed), device=places.device)
        repeats = (present & ~own).nonzero().squeeze(1)
        return cls((batch, length), token[first] * present, to_packed, repeats)

    def spread(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of tokens [N, H] at all their places, [B, T, H]."""
        spread: torch.Tensor = _Spread.apply(tokens, self)  # type: ignore[no-untyped-call]
        return spread.unflatten(0, self.shape)  # type: ignore[no-untyped-call, no-any-return]

    def gather(self, places: torch.Tensor) -> torch.Tensor:
        """Rows of the tokens among those of all places: [B, T, H] -> [N, H]."""
        gathered: torch.Tensor = _Gather.apply(places.flatten(0, 1), self.to_packed)  # type: ignore[no-untyped-call]
        return gathered


# Autograd's own derivative of `index_select` adds row by row; here nearly all rows are moved, and few are added.
class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, packing: Packing) -> torch.Tensor:
        ctx.packing = packing
        return tokens.index_select(0, packing.to_padded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        packing: Packing = ctx.packing
        total = grad.index_select(0, packing.to_packed)
        if len(packing.repeats):
            tokens = packing.to_padded.index_select(0, packing.repeats)
            total.index_add_(0, tokens, grad.index_select(0, packing.repeats))
        return total, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: torch.Tensor, to_packed: torch.Tensor) -> torch.Tensor:
        ctx.to_packed, ctx.rows = to_packed, len(places)
        return places.index_select(0, to_packed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_copy_(0, ctx.to_packed, grad), None
