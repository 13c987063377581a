"""One weight version as one contiguous block of bytes: what travels through the object store.

A block moves through Ray without copies (one out-of-band buffer), and one checksum covers all of it.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_api.errors import ModelError

_ALIGNMENT = 16


@dataclass(frozen=True)
class WeightsPayload:
    """Weights of one version.

    Attributes:
        version: weight version, +1 per published optimizer step.
        block: uint8 [bytes], all tensors one after the other.
        index: name -> (dtype name, shape, offset in bytes).
        checksum: CRC-32 of `block`.
    """

    version: int
    block: np.ndarray
    index: dict[str, tuple[str, tuple[int, ...], int]]
    checksum: int


def pack_weights(tensors: Mapping[str, Tensor], version: int) -> WeightsPayload:
    """Copies the tensors (any device) into one block in host memory."""
    index: dict[str, tuple[str, tuple[int, ...], int]] = {}
    offset = 0
    for name, tensor in tensors.items():
        index[name] = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset)
        offset += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    block = torch.zeros(offset, dtype=torch.uint8)
    for name, tensor in tensors.items():
        _view(block, index[name]).copy_(tensor.detach())
    array = block.numpy()
    return WeightsPayload(version, array, index, zlib.crc32(array.data))


def unpack_weights(payload: WeightsPayload) -> dict[str, Tensor]:
    """Tensors that share memory with the block: read them, never write them. ModelError: not the bytes that were sent."""
    found = zlib.crc32(payload.block.data)
    if found != payload.checksum:
        raise ModelError(
            f"weights of version {payload.version}: checksum {found:#010x} found, {payload.checksum:#010x} sent; "
            "the transfer damaged them, start the run again with --resume"
        )
    with warnings.catch_warnings():
        # The object store's memory is read-only; so is what we hand out.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        block = torch.frombuffer(payload.block, dtype=torch.uint8) if payload.block.size else torch.empty(0)
    return {name: _view(block, place) for name, place in payload.index.items()}


def _view(block: Tensor, place: tuple[str, tuple[int, ...], int]) -> Tensor:
    dtype_name, shape, offset = place
    dtype: torch.dtype = getattr(torch, dtype_name)
    size = math.prod(shape) * dtype.itemsize
    return block[offset : offset + size].view(dtype).view(shape)
