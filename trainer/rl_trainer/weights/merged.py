"""A base's tensors with a LoRA adapter's changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rl_trainer.weights.payload import dtypes_of

# Numbers that are merged at a time: what lies between stays in a CPU's cache.
_PIECE = 1 << 18


class Adapted(NamedTuple):
    """How a weight W of a file is changed: W + scale B A, or its transpose where W is stored as [in, out].

    Attributes:
        a: name of A, [rank, in], as `adapter_state` has it.
        b: name of B, [out, rank].
        scale: alpha / rank.
        turned: W is stored as [in, out].
    """

    a: str
    b: str
    scale: float
    turned: bool = False

    @classmethod
    def of(cls, module: str, scale: float, *, turned: bool = False) -> Adapted:
        """The adapter of a module by `peft`'s name of it."""
        return cls(f"{module}.lora_A.weight", f"{module}.lora_B.weight", scale, turned)

    @torch.no_grad()
    def merge(self, base: Tensor, tensors: Mapping[str, Tensor], into: Tensor) -> None:
        """Writes W with its change to `into`, computed in fp32 as a learner does that publishes merged weights."""
        a, b = tensors[self.a].float(), tensors[self.b].float()
        left, right = (a.T, b.T) if self.turned else (b, a)
        rows = max(1, _PIECE // base.shape[1])
        for start in range(0, base.shape[0], rows):
            piece = slice(start, start + rows)
            into[piece] = base[piece].float() + left[piece] @ right * self.scale


class MergedTensors(Mapping[str, Tensor]):
    """The tensors of `base`, in place of some those of `merged`.

    Args:
        base: by name.
        merged: by the same names.
        shapes: of `base`.
    """

    def __init__(
        self,
        base: Mapping[str, Tensor],
        merged: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]],
    ):
        self._base, self._merged = base, merged
        self.shapes = dict(shapes)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Number format by name."""
        return dtypes_of(self._base) | {name: value.dtype for name, value in self._merged.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._merged[name] if name in self._merged else self._base[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
