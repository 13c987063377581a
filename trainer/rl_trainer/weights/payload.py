"""One weight version as blocks of bytes: what travels through the object store.

A block moves through Ray without copies (one out-of-band buffer) and has its own checksum. Blocks are made one after the
other, so that publishing needs room for one of them beside the model.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_api.errors import ModelError
from rl_trainer.weights.source import TensorSource

# Bytes of a block at most, unless one tensor is larger: that has a block of its own.
BLOCK_BYTES = 64 << 20
_ALIGNMENT = 16

Index = Mapping[str, tuple[str, tuple[int, ...], int]]


@dataclass(frozen=True)
class WeightsBlock:
    """Some of the weights of one version.

    Attributes:
        version: weight version, +1 per published optimizer step.
        number: of this block, from 0.
        blocks: of this version.
        block: uint8 [bytes], the tensors one after the other.
        index: name -> (dtype name, shape, offset in bytes).
        checksum: CRC-32 of `block`.
    """

    version: int
    number: int
    blocks: int
    block: np.ndarray
    index: Index
    checksum: int


def pack_weights(source: TensorSource, version: int, limit: int = BLOCK_BYTES) -> Iterator[WeightsBlock]:
    """Copies the tensors (any device) into blocks of at most `limit` bytes in host memory, made as they are asked for."""
    parts = list(_parts(source, limit))
    items = source.items()
    for number, index in enumerate(parts):
        yield _pack(index, items, version, number, len(parts))
    for _ in items:  # to the end, as the other ranks do
        pass


def _parts(source: TensorSource, limit: int) -> Iterator[Index]:
    """Which tensors are in which block, and where; at least one block."""
    index: dict[str, tuple[str, tuple[int, ...], int]] = {}
    offset = 0
    for name, size in source.sizes().items():
        padded = _padded(size)
        if index and offset + padded > limit:
            yield index
            index, offset = {}, 0
        dtype, shape = source.shapes[name]
        index[name] = (str(dtype).removeprefix("torch."), tuple(shape), offset)
        offset += padded
    yield index


def _pack(
    index: Index, items: Iterator[tuple[str, Tensor]], version: int, number: int, blocks: int
) -> WeightsBlock:
    end = max((offset + _padded(_size(dtype, shape)) for dtype, shape, offset in index.values()), default=0)
    block = torch.zeros(end, dtype=torch.uint8)
    for expected in index:
        name, tensor = next(items)
        assert name == expected, f"{name} came, {expected} was to come"
        _view(block, index[name]).copy_(tensor.detach())
        del tensor  # before the next one is made
    array = block.numpy()
    return WeightsBlock(version, number, blocks, array, index, zlib.crc32(array.data))


def unpack_weights(blocks: Sequence[WeightsBlock]) -> dict[str, Tensor]:
    """Tensors that share memory with the blocks, which are all of one version: read them, never write them.

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
    tensors: dict[str, Tensor] = {}
    for one in blocks:
        tensors |= _unpack(one)
    return tensors


def _unpack(one: WeightsBlock) -> dict[str, Tensor]:
    found = zlib.crc32(one.block.data)
    if found != one.checksum:
        raise ModelError(
            f"weights of version {one.version}, block {one.number + 1} of {one.blocks}: checksum {found:#010x} found, "
            f"{one.checksum:#010x} sent; the transfer damaged them, start the run again with --resume"
        )
    with warnings.catch_warnings():
        # The object store's memory is read-only; so is what we hand out.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        block = torch.frombuffer(one.block, dtype=torch.uint8) if one.block.size else torch.empty(0)
    return {name: _view(block, place) for name, place in one.index.items()}


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _size(dtype_name: str, shape: tuple[int, ...]) -> int:
    dtype: torch.dtype = getattr(torch, dtype_name)
    return math.prod(shape) * dtype.itemsize


def _view(block: Tensor, place: tuple[str, tuple[int, ...], int]) -> Tensor:
    dtype_name, shape, offset = place
    dtype: torch.dtype = getattr(torch, dtype_name)
    return block[offset : offset + _size(dtype_name, shape)].view(dtype).view(shape)
