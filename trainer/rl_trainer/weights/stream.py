"""The tensors of a source as plain bytes, a bounded number of them at a time: how they get from learners into files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_trainer.weights.source import TensorSource

# Bytes of one piece at most.
CHUNK_BYTES = 32 << 20

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


def byte_chunks(
    source: TensorSource, *, used: bool = True, limit: int = CHUNK_BYTES
) -> Iterator[npt.NDArray[np.uint8] | None]:
    """The bytes of all tensors, one after the other, `limit` at a time; the last piece is what remains.

    Several ranks that iterate the same source by this make the same tensors for the same piece. `used` False: of a rank
    whose bytes nobody wants; its pieces are None.
    """
    total = sum(source.sizes().values())
    taken = _Bytes(source, used)
    for start in range(0, total, limit):
        size = min(limit, total - start)
        yield taken.next(size, last=start + size == total)


class _Bytes:
    def __init__(self, source: TensorSource, used: bool):
        self._sizes, self._items, self._used = source.sizes(), source.items(), used
        self._rest: Tensor | None = None  # uint8, the end of what was made last
        self._left = 0  # bytes of it

    def next(self, size: int, *, last: bool) -> npt.NDArray[np.uint8] | None:
        """The next `size` bytes; with the `last` ones the source is run to its end."""
        chunk = torch.empty(size, dtype=torch.uint8) if self._used else None
        filled = 0
        while filled < size:
            if not self._left:
                self._make()
                continue
            count = min(self._left, size - filled)
            if chunk is not None and self._rest is not None:
                chunk[filled : filled + count] = self._rest[:count]
                self._rest = self._rest[count:]
            filled, self._left = filled + count, self._left - count
            if not self._left:
                self._rest = None  # before the next one is made
        if last:
            for _ in self._items:
                pass
        return None if chunk is None else chunk.numpy()

    def _make(self) -> None:
        name, tensor = next(self._items)
        if self._used:
            self._rest = tensor.detach().cpu().reshape(-1).view(torch.uint8)
        # What stands for a whole tensor on ranks that make none has no bytes.
        self._left = tensor.nbytes or self._sizes[name]
