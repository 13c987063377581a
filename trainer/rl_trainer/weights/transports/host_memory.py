"""Memory of the host that other processes can map: files without names, which end with the last who has them.

Not in /dev/shm, where a process that is killed would leave them, and which in a container is small.
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from rl_trainer.weights.free_memory import MARGIN, free_memory


class HostMemory:
    """Memory of this process's, until `close`; others map it by its file, and keep what they have mapped.

    Attributes:
        tensor: uint8 [size].
        file: descriptor of the file.
        handle: nothing, see `CudaMemory`.
    """

    handle: bytes = b""

    def __init__(self, size: int):
        """Raises MemoryError where there is no room."""
        # A file in memory takes its pages when they are written, and then the kernel ends a process for want of one.
        if free_memory() < size + MARGIN:
            raise MemoryError(
                f"no memory of the host is left for them ({size / 1e9:.1f} GB and {MARGIN / 1e9:.1f} GB that stay free)"
            )
        try:
            self.file = os.memfd_create("rltrain-weights", os.MFD_CLOEXEC)
            try:
                os.ftruncate(self.file, max(1, size))
                memory = mmap.mmap(self.file, max(1, size))
            except BaseException:
                os.close(self.file)
                raise
        except OSError as error:
            raise MemoryError(
                f"no memory of the host is left for them ({size / 1e9:.1f} GB: {error.strerror})"
            ) from error
        self.tensor: Tensor | None = torch.frombuffer(memory, dtype=torch.uint8)[:size]

    def close(self) -> None:
        """Gives it back as soon as nobody has mapped it; nobody here uses the tensor any more."""
        self.tensor = None
        os.close(self.file)


def map_host(file: int, size: int, ended: Callable[[], object]) -> Tensor:
    """The memory of another process, uint8 [size], to be read only; `ended` is called once no tensor of it is left. The
    descriptor is closed."""
    try:
        memory = mmap.mmap(file, max(1, size), prot=mmap.PROT_READ)
    finally:
        os.close(file)
    weakref.finalize(memory, ended).atexit = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)[:size]
