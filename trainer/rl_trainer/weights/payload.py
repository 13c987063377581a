"""One weight version as blocks of bytes: what travels to the samplers, whatever the way.

A block moves without copies (one buffer) and has its own checksum. Blocks are made one after the other, so that publishing
needs room for one of them beside the model; a tensor that is larger is split over several.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from rl_api.errors import ModelError
from rl_trainer.weights.row_order import deinterleave
from rl_trainer.weights.source import LazyTensor, TensorSource

# Bytes of a block at most: many blocks to a version, so that one is put into the store while the next is made.
BLOCK_BYTES = 24 << 20
# At which bytes of a block a tensor may begin; pieces of one are multiples of it, so that no number is cut.
# Ray's store puts each buffer of a value at a multiple of it, so that buffers of such sizes lie there without a gap.
_ALIGNMENT = 64


class Place(NamedTuple):
    """Where `size` bytes of a tensor, from its byte `first` on, are in a block: at `offset`.

    `dtype`, `shape`: of the whole tensor. `interleaved`: rows of a head, where rows are in our decoder's order; else 0.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    first: int
    size: int
    interleaved: int = 0


Index = Mapping[str, Place]


@dataclass(frozen=True)
class WeightsBlock:
    """Some of the weights of one version.

    Attributes:
        version: weight version, +1 per published optimizer step.
        number: of this block, from 0.
        blocks: of this version.
        block: uint8 [bytes], the tensors one after the other.
        index: where in it each tensor is, or the part of one that is split.
        checksum: see `checksum_of`.
    """

    version: int
    number: int
    blocks: int
    block: np.ndarray
    index: Index
    checksum: int


class Tensors(Mapping[str, Tensor]):
    """Tensors by name that share memory with the blocks they came in: read them, never write them.

    Those that are split over blocks are put together when they are asked for, each time anew: no more than one of them
    need be in memory beside the blocks.
    """

    def __init__(self, blocks: Sequence[tuple[Index, Tensor]], *, lent: bool = False):
        """`blocks`: of each what it holds, and the bytes of all of it, uint8; in the order of the version. `lent`: see
        `lent_rows`."""
        self.lent = lent
        self._parts: dict[str, list[tuple[Place, Tensor]]] = {}
        for index, block in blocks:
            for name, place in index.items():
                self._parts.setdefault(name, []).append((place, block))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by name, with nothing put together."""
        return {name: parts[0][0].shape for name, parts in self._parts.items()}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Number format by name, with nothing put together."""
        return {name: getattr(torch, parts[0][0].dtype) for name, parts in self._parts.items()}

    def __getitem__(self, name: str) -> Tensor:
        found, head_dim = self.laid(name)
        return deinterleave(found, head_dim) if head_dim else found

    def laid(self, name: str) -> tuple[Tensor, int]:
        """A tensor as it came, and `Place.interleaved` of it; looked up by its name it is in Hugging Face's order."""
        parts = self._parts[name]
        place = parts[0][0]
        dtype: torch.dtype = getattr(torch, place.dtype)
        data = [block[one.offset : one.offset + one.size] for one, block in parts]
        whole = data[0] if len(data) == 1 else torch.cat(data)
        return whole.view(dtype).view(place.shape), place.interleaved

    def rows(self, wanted: Sequence[tuple[str, int]]) -> Tensor | None:
        """See `lent_rows`; in whatever memory."""
        found = [self._parts.get(name, []) for name, _ in wanted]
        if not found or any(len(parts) != 1 for parts in found):
            return None
        places = [parts[0] for parts in found]
        first, block = places[0]
        end, rows = first.offset, 0
        for (place, where), (_, head_dim) in zip(places, wanted, strict=True):
            alike = (place.dtype, place.shape[1:]) == (first.dtype, first.shape[1:]) and where is block
            if not alike or not place.shape or (place.offset, place.interleaved) != (end, head_dim):
                return None
            end, rows = end + place.size, rows + place.shape[0]
        dtype: torch.dtype = getattr(torch, first.dtype)
        return block[first.offset : end].view(dtype).view(rows, *first.shape[1:])

    def __contains__(self, name: object) -> bool:
        return name in self._parts  # a mapping's own would make the tensor to see

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape by name, of whatever has one."""
    found: dict[str, tuple[int, ...]] | None = getattr(tensors, "shapes", None)
    return {name: tuple(value.shape) for name, value in tensors.items()} if found is None else found


def dtypes_of(tensors: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
    """Number format by name."""
    found: dict[str, torch.dtype] | None = getattr(tensors, "dtypes", None)
    return {name: value.dtype for name, value in tensors.items()} if found is None else found


def laid_tensor(tensors: Mapping[str, Any], name: str, head_dim: int = 0) -> Tensor | None:
    """A tensor that came with its rows interleaved within heads of `head_dim` rows, 0: in Hugging Face's order, as it came.
    None: there is none of that name, or it came in another order."""
    if not isinstance(tensors, Tensors) or name not in tensors:
        return None
    found, order = tensors.laid(name)
    return found if order == head_dim else None


def lent_rows(tensors: Mapping[str, Any], wanted: Sequence[tuple[str, int]]) -> Tensor | None:
    """The rows of several tensors in memory that stays as it is as long as somebody holds a view of it: it may be used for
    any length of time, and never be written.

    `wanted`: each by its name, and the order of its rows as for `laid_tensor`. None: not all of them came so, or in such
    memory, or they do not lie one after the other.
    """
    return tensors.rows(wanted) if isinstance(tensors, Tensors) and tensors.lent else None


def made_when_wanted(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Each looked up only then: those that are split over blocks are never there all at once."""
    dtypes, shapes = dtypes_of(tensors), shapes_of(tensors)
    return {
        name: LazyTensor(dtypes[name], shapes[name], partial(tensors.__getitem__, name)) for name in shapes
    }


def checksum_of(block: np.ndarray) -> int:
    """XXH3, 64 bits: at the speed of memory, where a CRC takes as long as several copies."""
    return xxh3_64_intdigest(block.data)


class Rooms:
    """Memory for two blocks in turn: what was touched before takes a copy in a quarter of the time."""

    def __init__(self) -> None:
        self._memory = [torch.empty(0, dtype=torch.uint8)] * 2

    def __call__(self, size: int) -> Tensor:
        """uint8 [size], the memory of the block before the last one."""
        before, last = self._memory
        self._memory = [last, torch.empty(size, dtype=torch.uint8) if before.numel() < size else before]
        return self._memory[1][:size]


def _new_room(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def pack_weights(
    source: TensorSource,
    version: int,
    limit: int = BLOCK_BYTES,
    room: Callable[[int], Tensor] = _new_room,
) -> Iterator[WeightsBlock]:
    """Copies the tensors (any device) into blocks of at most `limit` bytes in host memory, made as they are asked for.

    Args:
        source: the tensors.
        version: of them.
        limit: a multiple of 64.
        room: memory for so many bytes, where a block is made; a block is good until it is handed out again.
    """
    parts = list(parts_of(source, limit))
    taken = Taken(source.items())
    for number, index in enumerate(parts):
        yield _pack(index, taken, room, version, number, len(parts))
    taken.finish()


def parts_of(source: TensorSource, limit: int) -> Iterator[Index]:
    """Which tensors are in which block, and where; at least one block."""
    index: dict[str, Place] = {}
    offset = 0
    for name, size in source.sizes().items():
        dtype, shape = source.shapes[name]
        described = str(dtype).removeprefix("torch."), tuple(shape)
        if size <= limit < offset + padded(size):
            yield index
            index, offset = {}, 0
        first = 0
        while True:
            if offset >= limit:
                yield index
                index, offset = {}, 0
            count = min(size - first, limit - offset)
            index[name] = Place(*described, offset, first, count, source.interleaved.get(name, 0))
            offset, first = offset + padded(count), first + count
            if first == size:
                break
    yield index


class Taken:
    """What a source makes, held only until the last byte of it is in a block."""

    def __init__(self, items: Iterator[tuple[str, Tensor]]):
        self._items = items
        # Flat: what is left of the piece that was made last.
        self._left: Tensor | None = None

    def copy_into(self, target: Tensor, name: str, dtype: torch.dtype) -> None:
        """Fills `target`, uint8 on the host, with the next bytes in number format `dtype`, which are of tensor `name`."""
        filled = 0
        while filled < target.numel():
            part = self.take(name, (target.numel() - filled) // dtype.itemsize)
            end = filled + part.numel() * dtype.itemsize
            # Where it is: a wider number would cross the bus first, and the processor convert it.
            made = part if part.device.type == "cpu" else part.to(dtype)
            target[filled:end].view(dtype).copy_(made)
            filled = end
            del part, made  # before the next one is made

    def take(self, name: str, most: int) -> Tensor:
        """The next numbers of tensor `name` as they were made, flat: at most so many, and one at least."""
        if self._left is None:
            self._make(name)
        assert self._left is not None
        found, left = self._left[:most], self._left[most:]
        self._left = left if left.numel() else None
        return found

    def _make(self, name: str) -> None:
        made, tensor = next(self._items)
        while not tensor.numel():  # one without numbers has no bytes to ask for
            made, tensor = next(self._items)
        assert made == name, f"{made} came, {name} was to come"
        self._left = tensor.detach().contiguous().reshape(-1)

    def finish(self) -> None:
        """Runs the source to its end, as the other ranks do."""
        for _ in self._items:
            pass


def _pack(
    index: Index, taken: Taken, room: Callable[[int], Tensor], version: int, number: int, blocks: int
) -> WeightsBlock:
    block = room(end_of(index))
    fill_block(block, index, taken)
    array = block.numpy()
    return WeightsBlock(version, number, blocks, array, index, checksum_of(array))


def fill_block(block: Tensor, index: Index, taken: Taken) -> None:
    """Copies the tensors of an index into its block, uint8 [bytes] on any device, with zeros between them."""
    for name, place in index.items():
        last = place.offset + place.size
        taken.copy_into(block[place.offset : last], name, getattr(torch, place.dtype))
        block[last : place.offset + padded(place.size)] = 0


def damaged(version: int, number: int, blocks: int, found: str, sent: str) -> ModelError:
    """What is raised for block `number` of `blocks` whose checksum is not the one that was sent."""
    return ModelError(
        f"weights of version {version}, block {number + 1} of {blocks}: checksum {found} found, {sent} sent; the transfer "
        "damaged them, start the run again with --resume"
    )


def check_block(one: WeightsBlock) -> None:
    """Raises ModelError where its bytes are not those that were sent."""
    found = checksum_of(one.block)
    if found != one.checksum:
        raise damaged(one.version, one.number, one.blocks, f"{found:#018x}", f"{one.checksum:#018x}")


def _check_all(blocks: Sequence[WeightsBlock]) -> None:
    for one in blocks:
        check_block(one)


def unpack_weights(
    blocks: Sequence[WeightsBlock],
    *,
    lent: bool = False,
    check: Callable[[Sequence[WeightsBlock]], None] = _check_all,
) -> Tensors:
    """The tensors of the blocks, which are all of one version.

    Args:
        blocks: in order.
        lent: see `lent_rows`.
        check: `check_block` of each, or of those of which nothing else says that they are right.

    Raises:
        ModelError: not the bytes that were sent, or not the blocks of one version.
    """
    version, count = (blocks[0].version, blocks[0].blocks) if blocks else (-1, 1)
    for number in range(max(count, len(blocks))):
        one = blocks[number] if number < len(blocks) else None
        if one is None or (one.version, one.blocks, one.number) != (version, count, number):
            found = "none" if one is None else f"{one.number + 1} of {one.blocks} of version {one.version}"
            raise ModelError(
                f"weights of version {version}: expected block {number + 1} of {count}, found {found}; "
                "start the run again with --resume"
            )
    check(blocks)
    return Tensors([_unpack(one) for one in blocks], lent=lent)


def _unpack(one: WeightsBlock) -> tuple[Index, Tensor]:
    with warnings.catch_warnings():
        # The object store's memory is read-only; so is what we hand out.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        block = (
            torch.frombuffer(one.block, dtype=torch.uint8)
            if one.block.size
            else torch.empty(0, dtype=torch.uint8)
        )
    return one.index, block


def end_of(index: Index) -> int:
    """Bytes of a block."""
    return max((place.offset + padded(place.size) for place in index.values()), default=0)


def padded(size: int) -> int:
    """Bytes of a block that a tensor of `size` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
