"""The memory of this process that layers take while they are gathered."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_M_MMAP_THRESHOLD = -3  # of glibc's <malloc.h>
_BLOCK = 1 << 17


def give_back_freed_memory() -> None:
    """From now on what is freed in blocks of 128 KiB or more goes back to the system at once.

    By itself glibc raises that limit with every large block that is freed, up to 32 MiB, and keeps smaller ones: layers
    that are gathered and freed in turn would stay in memory. Without glibc nothing changes.
    """
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        setting(_M_MMAP_THRESHOLD, _BLOCK)


class FreeingReduceScatter:
    """FSDP2's `ReduceScatter` for collectives that are over when they return, as gloo's are: gradients of a whole layer are
    freed then, and not when the next layer's are summed up.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is summed up, and for the sum."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sums `input_tensor` up over the ranks of `group`, each of which gets its part."""
        dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)
        input_tensor.untyped_storage().resize_(0)
