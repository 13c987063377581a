"""What changed of one block of weights since another version: the changed elements alone, exactly. Pure; no Ray here.

A training step in bfloat16 leaves most elements as they are: an update of about the learning rate, 1e-6, is far below the
distance of two neighbouring numbers at a weight's size (2^-8 of it). What changed is told by where and by what: the numbers
of unchanged elements before each changed one, a byte each, or one bit per element where that is less; then the new elements.
Elements are as wide as the narrowest numbers of the block, so that no number is told twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from rl_api.errors import ModelError

Bytes = npt.NDArray[np.uint8]
Positions = Literal["none", "gaps", "bits", "all"]

# A byte of the gaps that says: so many unchanged elements, and the next byte goes on.
_MORE = 255
# Elements that are compared at a time.
_PIECE = 1 << 17
_ELEMENTS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class BlockDelta:
    """From block `number` of version `base` to that of `version`.

    Attributes:
        base: version whose bytes are needed.
        version: that comes out.
        number: of the block, from 0.
        blocks: of the version.
        size: bytes of the block.
        width: bytes of an element.
        positions: how `places` says which elements changed: `none` did, `gaps`, `bits`, or `all` are sent.
        places: uint8 [..].
        values: uint8 [changed elements * width], what they are now.
        checksum: of the block as it is to be (`payload.checksum_of`).
    """

    base: int
    version: int
    number: int
    blocks: int
    size: int
    width: int
    positions: Positions
    places: Bytes
    values: Bytes
    checksum: int

    @property
    def nbytes(self) -> int:
        """Bytes that travel, but for the header."""
        return self.places.nbytes + self.values.nbytes


def encode(
    old: Bytes,
    new: Bytes,
    *,
    width: int,
    base: int,
    version: int,
    number: int,
    blocks: int,
    checksum: int,
) -> BlockDelta:
    """What makes `new` out of `old`: never more bytes than `new` has. `all` shares memory with `new`.

    Args:
        old: uint8 [bytes], of version `base`.
        new: uint8 [bytes], of `version`; as long, and a multiple of `width`.
        width: bytes of an element: 1, 2, 4 or 8.
        base: see `BlockDelta`.
        version: see there.
        number: see there.
        blocks: see there.
        checksum: see there.
    """
    kind = _ELEMENTS[width]
    before, after = old.view(kind), new.view(kind)
    indices = _changed(before, after)
    positions: Positions
    places, values = np.empty(0, np.uint8), np.empty(0, np.uint8)
    if not len(indices):
        positions = "none"
    else:
        positions, places = _places(indices, len(after))
        if places.nbytes + len(indices) * width < new.nbytes:
            values = after[indices].view(np.uint8)
        else:
            positions, places, values = "all", places[:0], new
    return BlockDelta(base, version, number, blocks, new.nbytes, width, positions, places, values, checksum)


def apply(delta: BlockDelta, block: Bytes) -> None:
    """Makes block `delta.number` of version `delta.base` that of `delta.version`, in place; its checksum says whether it is.

    Raises:
        ModelError: it does not fit the block.
    """
    if block.nbytes != delta.size:
        raise ModelError(
            f"{_where(delta)}: it is for {delta.size} bytes, the block has {block.nbytes}; {_HINT}"
        )
    if delta.positions == "none":
        return
    if delta.positions == "all":
        block[:] = delta.values
        return
    elements = block.view(_ELEMENTS[delta.width])
    values = delta.values.view(elements.dtype)
    indices = _indices(delta, len(elements))
    if len(indices) != len(values) or (len(indices) and indices[-1] >= len(elements)):
        raise ModelError(
            f"{_where(delta)}: {len(indices)} places for {len(values)} values of {len(elements)} elements; the transfer "
            f"damaged it, {_HINT}"
        )
    elements[indices] = values


def width_of(dtype_names: set[str]) -> int:
    """Bytes of an element of a block that holds numbers of these types: as many as the narrowest have, 8 at most."""
    return min((min(8, getattr(torch, name).itemsize) for name in dtype_names), default=1)


_HINT = "start the run again with --resume"


def _where(delta: BlockDelta) -> str:
    return f"weights of version {delta.version} from version {delta.base}, block {delta.number + 1} of {delta.blocks}"


def _changed(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Indices of the elements that differ; a piece at a time, so that what lies between stays in the processor's cache."""
    found = [np.empty(0, np.int64)]
    for start in range(0, len(after), _PIECE):
        indices = np.flatnonzero(before[start : start + _PIECE] != after[start : start + _PIECE])
        if len(indices):
            found.append(indices + start)
    return np.concatenate(found)


def _places(indices: npt.NDArray[np.int64], elements: int) -> tuple[Positions, Bytes]:
    """Gaps or bits, whichever are fewer bytes."""
    bits = -(-elements // 8)
    if len(indices) < bits:
        gaps = np.diff(indices, prepend=-1) - 1
        more, last = np.divmod(gaps, _MORE)
        ends = np.cumsum(more + 1)
        if ends[-1] < bits:
            found = np.full(int(ends[-1]), _MORE, np.uint8)
            found[ends - 1] = last
            return "gaps", found
    differs = np.zeros(elements, np.bool_)
    differs[indices] = True
    return "bits", np.packbits(differs)


def _indices(delta: BlockDelta, elements: int) -> npt.NDArray[Any]:
    """The inverse of `_places`."""
    if delta.positions == "bits":
        return np.flatnonzero(np.unpackbits(delta.places, count=elements))
    last = np.flatnonzero(delta.places != _MORE)
    passed = np.cumsum(delta.places, dtype=np.int64)[last]
    return passed + np.arange(len(last))
