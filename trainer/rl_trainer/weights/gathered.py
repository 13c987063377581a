"""Blocks of a version that are gathered where they are put: most of a model on the host is copied once, into the store.

A block's bytes are a list of buffers, most of them a model's own memory. Pickle hands buffers to the store as they are, and
the store copies them one after the other: what comes out there is one block as `pack_weights` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from xxhash import xxh3_64

from rl_trainer.weights.payload import BLOCK_BYTES, Index, Taken, WeightsBlock, end_of, padded, parts_of
from rl_trainer.weights.source import TensorSource

Bytes = npt.NDArray[np.uint8]

# Of a smaller part of a tensor a copy costs less than one buffer more.
_LEAST_SHARED = 64 << 10
# Ray copies a buffer of more than 1 MiB with six threads that it starts for it, which takes longer than copying a few MiB.
_WORTH_THREADS = 8 << 20
_WITHOUT_THREADS = 512 << 10


@dataclass(frozen=True)
class GatheredBlock:
    """A `WeightsBlock` to be: pickled, it becomes one.

    Attributes:
        version: see `WeightsBlock`.
        number: see there.
        blocks: see there.
        index: see there.
        checksum: see there.
        buffers: uint8 [bytes] each, the block's bytes one after the other; some are the model's own memory.
    """

    version: int
    number: int
    blocks: int
    index: Index
    checksum: int
    buffers: tuple[Bytes, ...]

    def __reduce__(self) -> tuple[Callable[..., WeightsBlock], tuple[Any, ...]]:
        head = self.version, self.number, self.blocks, self.index, self.checksum
        return _joined, (*head, *(PickleBuffer(buffer.data) for buffer in self.buffers))


def gather_weights(
    source: TensorSource, version: int, room: Callable[[int], Tensor], limit: int = BLOCK_BYTES
) -> Iterator[GatheredBlock]:
    """As `pack_weights`, but that only what is no memory of the model's, or little, is copied to `room`.

    A block is good as long as the model is not changed, and until its room is handed out again.
    """
    parts = list(parts_of(source, limit))
    taken = Taken(source.items())
    for number, index in enumerate(parts):
        buffers = tuple(_gather(index, taken, room(end_of(index)), source.shared))
        yield GatheredBlock(version, number, len(parts), index, _checksum_of(buffers), buffers)
    taken.finish()


def _gather(index: Index, taken: Taken, room: Tensor, shared: frozenset[str]) -> Iterator[Bytes]:
    first = last = 0  # of `room`: copied, and not given yet
    for name, place in index.items():
        dtype: torch.dtype = getattr(torch, place.dtype)
        lent = place.size - place.size % padded(1) if name in shared and place.size >= _LEAST_SHARED else 0
        if lent:
            yield from _cut(room[first:last])
            first = last = place.offset + lent
            while lent:
                part = taken.take(name, lent // dtype.itemsize)
                yield from _cut(part.view(torch.uint8))
                lent -= part.nbytes
        end = place.offset + place.size
        taken.copy_into(room[last:end], name, dtype)
        last = place.offset + padded(place.size)
        room[end:last] = 0
    yield from _cut(room[first:last])


def _cut(part: Tensor) -> Iterator[Bytes]:
    """Buffers that the store copies fast."""
    array: Bytes = part.numpy()
    each = max(1, array.nbytes) if array.nbytes >= _WORTH_THREADS else _WITHOUT_THREADS
    for start in range(0, array.nbytes, each):
        yield array[start : start + each]


def _checksum_of(buffers: Sequence[Bytes]) -> int:
    """`payload.checksum_of` of all of them, one after the other."""
    found = xxh3_64()
    for buffer in buffers:
        found.update(buffer.data)
    return found.intdigest()


def _joined(
    version: int, number: int, blocks: int, index: Index, checksum: int, *buffers: Any
) -> WeightsBlock:
    return WeightsBlock(
        version, number, blocks, _as_one([np.frombuffer(one, np.uint8) for one in buffers]), index, checksum
    )


def _as_one(arrays: Sequence[Bytes]) -> Bytes:
    """Their bytes one after the other: the same memory where they lie so, which is read-only then, else a copy."""
    places = [array.__array_interface__["data"][0] for array in arrays]
    ends = [place + array.nbytes for place, array in zip(places, arrays, strict=True)]
    if not arrays or places[1:] != ends[:-1]:
        return np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
    return np.asarray(_Memory(arrays, ends[-1] - places[0]))


class _Memory:
    """Of several arrays that lie one after the other, and live as long as this does; numpy's array interface."""

    def __init__(self, arrays: Sequence[Bytes], size: int):
        self._arrays = arrays
        place = arrays[0].__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (place, True)}
