"""Devices, the parts of their memory, and how both are said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

GB: Final = 10**9
"""What memory is said in. Vendors' 80 GB are these, or a little more."""

ACCELERATOR_OVERHEAD: Final = 2**30
"""Bytes of an accelerator that are nobody's tensors: the CUDA context, NCCL's buffers, cuBLAS' workspace. Assumed."""
PROCESS_OVERHEAD: Final = 600 * 2**20
"""Bytes of a process on a CPU that are nobody's tensors: Python, torch, Ray. Assumed."""


@dataclass(frozen=True)
class Device:
    """What one rank computes on: an accelerator, or the memory of a pod without one. `memory` in bytes."""

    memory: int
    accelerator: bool = True

    @property
    def overhead(self) -> int:
        """Bytes that tensors never get."""
        return ACCELERATOR_OVERHEAD if self.accelerator else PROCESS_OVERHEAD

    @property
    def word(self) -> str:
        """For sentences: `80 GB device`."""
        return f"{gigabytes(self.memory)} {'device' if self.accelerator else 'pod'}"


@dataclass(frozen=True)
class Parts:
    """Bytes of one device by what they are for; the order is that of tables."""

    weights: int = 0
    gradients: int = 0
    moments: int = 0
    reference: int = 0
    critic: int = 0
    gathered: int = 0
    activations: int = 0
    checkpoint: int = 0
    caches: int = 0
    overhead: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(size for _, size in self.items())

    def items(self) -> Iterator[tuple[str, int]]:
        """Names and bytes."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)


def gigabytes(size: float) -> str:
    """`122 GB`, `3.4 GB`, `12 MB`."""
    if abs(size) < 0.1 * GB:
        return f"{size / 10**6:.0f} MB"
    return f"{size / GB:.0f} GB" if abs(size) >= 9.95 * GB else f"{size / GB:.1f} GB"


def parameters(count: float) -> str:
    """`7.6 B parameters`, `494 M parameters`, `66 k parameters`."""
    if count >= 999.5e6:
        return f"{count / 1e9:.1f} B parameters"
    return f"{count / 1e6:.0f} M parameters" if count >= 999.5e3 else f"{count / 1e3:.0f} k parameters"
