"""A base's tensors with a LoRA adapter's changes: each is merged when it is asked for, and none is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


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

    def merged(self, base: Tensor, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """W with its change, computed in fp32 as a learner does that publishes merged weights."""
        change = tensors[self.b].float() @ tensors[self.a].float() * self.scale
        return (base.float() + (change.T if self.turned else change)).to(dtype)


class MergedTensors(Mapping[str, Tensor]):
    """The tensors of `base`, those of `adapted` changed by the A and B in `adapter`; no more than one of them need be in
    memory beside both.

    Args:
        base: by Hugging Face name.
        adapter: A and B by the names that `adapted` has for them.
        adapted: the weights of `base` that are changed.
        dtype: number format of those that are changed.
        shapes: of `base`.
    """

    def __init__(
        self,
        base: Mapping[str, Tensor],
        adapter: Mapping[str, Tensor],
        adapted: Mapping[str, Adapted],
        dtype: torch.dtype,
        shapes: Mapping[str, tuple[int, ...]],
    ):
        self._base, self._adapter, self._adapted, self._dtype = base, adapter, adapted, dtype
        self.shapes = dict(shapes)

    def __getitem__(self, name: str) -> Tensor:
        base = self._base[name]
        return self._adapted[name].merged(base, self._adapter, self._dtype) if name in self._adapted else base

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
