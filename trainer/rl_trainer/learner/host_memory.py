"""The memory of this process that layers take while they are gathered."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # of glibc's <malloc.h>
_BLOCK = 1 << 20


def give_back_freed_memory() -> None:
    """From now on what is freed in blocks of a MiB or more goes back to the system at once.

    By itself glibc raises that limit with every large block that is freed, up to 32 MiB, and keeps smaller ones: layers
    that are gathered and freed in turn would stay in memory. Without glibc nothing changes.
    """
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        setting(_M_MMAP_THRESHOLD, _BLOCK)
