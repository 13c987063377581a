"""The tensors of a source as plain bytes, a bounded number of them at a time: how they get from learners into files."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_trainer.weights.source import TensorSource

# Bytes of one round at most.
CHUNK_BYTES = 32 << 20

Piece = tuple[str, npt.NDArray[np.uint8]]
"""The name of a tensor and the next bytes of it, which may share memory with the model."""

# Number formats as safetensors files name them.
_FORMATS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def file_shapes(source: TensorSource) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Number format, as safetensors files name it, and shape by name, in the order of the bytes."""
    return {name: (_FORMATS[dtype], tuple(shape)) for name, (dtype, shape) in source.shapes.items()}


def byte_rounds(
    source: TensorSource, wanted: Collection[str], *, limit: int = CHUNK_BYTES, copied: bool = False
) -> Iterator[list[Piece]]:
    """The bytes of those tensors that are `wanted`, in rounds that cover `limit` bytes of all tensors each.

    Several ranks that iterate the same source make the same tensors in the same round, whatever each of them wants. With the
    last round the source is at its end. `copied`: bytes never share memory with the model.
    """
    sizes, found, room = source.sizes(), list[Piece](), limit
    for name, tensor in source.items():
        dtype, _ = source.shapes[name]
        # What stands for a whole tensor on ranks that make none has no numbers.
        size, at = tensor.numel() * dtype.itemsize or sizes[name], 0
        data = (host_copy if copied else host_bytes)(tensor.to(dtype)) if name in wanted else None
        while at < size:
            count = min(room, size - at)
            if data is not None:
                found.append((name, data[at : at + count]))
            at, room = at + count, room - count
            if not room:
                yield found
                found, room = [], limit
        del data, tensor  # before the next one is made
    yield found


def host_bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor in this process's memory: the tensor's own, where they lie so."""
    found: npt.NDArray[np.uint8] = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return found


def host_copy(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """A copy of them: of a GPU's in pinned memory, into which it copies at the speed of the bus."""
    found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    made: npt.NDArray[np.uint8] = found.copy_(tensor.detach()).reshape(-1).view(torch.uint8).numpy()
    return made
