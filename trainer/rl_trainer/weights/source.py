"""Named tensors that are made one at a time: what learners publish, export and keep in checkpoints.

No process ever holds all of them at once, so that what travels and what is written costs no more memory than one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

# Bytes at most of what is made of a tensor at once, where its rows can be made alone.
PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class TensorSource:
    """Tensors by name, made while they are iterated.

    With several learner ranks all of them iterate a source together, each item once and to the end: making one may be a
    collective. Values are used on rank 0 alone; on others an item may be anything of that name.

    Attributes:
        shapes: dtype and shape by name; on every rank the same, in the same order.
        items: name and tensor, on any device, contiguous or not, in the order of `shapes`; a large one in pieces, an item
            each, that are one after the other along its first dimension. A tensor may share memory with the model: it is
            to be copied before the next item is asked for, and never written to. It may be in a wider number format than
            `shapes` says, in which it is to be copied.
        interleaved: names of tensors whose rows are in our decoder's order (`row_order.interleave`), and rows of a head.
        shared: names of tensors of which every item is the model's own memory on the host, and stays as it is for as long
            as the model is not changed: they need not be copied at once.
    """

    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    items: Callable[[], Iterator[tuple[str, Tensor]]]
    shared: frozenset[str] = frozenset()
    interleaved: Mapping[str, int] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in self.shapes.items()}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that `make` makes when it is wanted; see `TensorSource` for what it may be.

    `rows`, where there is such a thing: makes its rows from one number up to another. `shared`: see there.
    `wide`: what it is the same as in another number format. `laid`: the same in the order in which the model has its rows.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]
    rows: Callable[[int, int], Tensor] | None = None
    shared: bool = False
    wide: LazyTensor | None = None
    laid: Laid | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> LazyTensor:
        """One that is there already."""
        return cls(tensor.dtype, tuple(tensor.shape), lambda: tensor, shared=can_be_shared(tensor))

    def to(self, dtype: torch.dtype) -> LazyTensor:
        """In another number format; numbers that are whole stay as they are. Of one that is in another one already,
        what `make` makes is converted: it may have lost bits that the first one had."""
        if not self.dtype.is_floating_point or dtype == self.dtype:
            return self
        return LazyTensor(
            dtype,
            self.shape,
            lambda: self.make().to(dtype),
            wide=self if self.wide is None else None,
            laid=None if self.laid is None else Laid(self.laid.tensor.to(dtype), self.laid.head_dim),
        )

    def pieces(self, limit: int) -> Iterator[Tensor]:
        """All of it, in pieces of at most `limit` bytes or one row where its rows can be made, else in one; in one as well
        where that takes no memory. Those of `wide`, where there is that."""
        if self.wide is not None:
            yield from self.wide.pieces(limit)
            return
        size = self.dtype.itemsize * math.prod(self.shape)
        if self.rows is None or self.shared or size <= limit:
            yield self.make()
            return
        each = max(1, limit * self.shape[0] // size)
        for first in range(0, self.shape[0], each):
            yield self.rows(first, min(first + each, self.shape[0]))


class Laid(NamedTuple):
    """A tensor with its rows in our decoder's order (`row_order.interleave`), `head_dim` of them a head."""

    tensor: LazyTensor
    head_dim: int


def lazy(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Tensors that are there already."""
    return {name: LazyTensor.of(value) for name, value in tensors.items()}


def source_of(
    tensors: Mapping[str, LazyTensor], limit: int = PIECE_BYTES, *, as_laid: bool = False
) -> TensorSource:
    """A source of these, those of wide numbers first: each then begins at a multiple of its own width in a file.

    `limit`: bytes of a piece of a large one. `as_laid`: each as the model has it.
    """
    laid = {name: one.laid for name, one in tensors.items() if one.laid is not None} if as_laid else {}
    tensors = {**tensors, **{name: one.tensor for name, one in laid.items()}}
    names = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    return TensorSource(
        {name: (tensors[name].dtype, tensors[name].shape) for name in names},
        lambda: chain.from_iterable(_named(name, tensors[name].pieces(limit)) for name in names),
        frozenset(name for name in names if tensors[name].shared),
        {name: one.head_dim for name, one in laid.items()},
    )


def can_be_shared(tensor: Tensor) -> bool:
    """Whether its bytes lie in this process's memory one after the other, all of them."""
    return type(tensor.data) is Tensor and tensor.device.type == "cpu" and tensor.is_contiguous()


def _named(name: str, pieces: Iterator[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Not a loop, whose variable would keep a piece while the next one is made."""

    def named(piece: Tensor) -> tuple[str, Tensor]:
        return name, piece

    return map(named, pieces)
