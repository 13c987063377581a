"""Tensors whose memory is given back for a while, and that come back in place with the same bits.

The same tensors, views and fused buffers stay valid: nothing is made anew. On a CPU the bytes go to a file and the pages
of the memory, which keeps its addresses, to the system. On a GPU they go to pinned main memory and the storages are emptied,
as FSDP2 does with gathered layers; what torch keeps of that for itself is given back too, so that other processes have it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_api.errors import RLTrainError
from rl_trainer.error_text import first_line, reason
from rl_trainer.model.rows import local

_PAGE = mmap.PAGESIZE
_MADV_DONTNEED = 4  # of Linux: the pages are gone, and read as zeros from then on
# What goes to the file at a time, and is left out of it where it is all zeros: the unused end of a cache, new moments.
_BLOCK = 1 << 20


class Offloader:
    """Moves what one role keeps on its device out and in again. Calls are for one thread.

    `owner`: who it is in sentences, such as learner 0. `folder`: of the file, which has no name and ends with the process;
    None: the system's folder for temporary files.
    """

    def __init__(self, owner: str, folder: Path | None = None):
        self._owner, self._folder = owner, folder
        self._away: _Away | None = None

    @property
    def away(self) -> bool:
        """Whether `offload` was called last."""
        return self._away is not None

    def offload(self, tensors: Iterable[Tensor], void: Iterable[Tensor] = ()) -> int:
        """Gives the memory of `tensors` and `void` back, until `onload`; how many bytes. Away already: nothing, and 0.

        Of divided parameters the rows held here are meant. What is on an accelerator is moved, or, where nothing is, what is
        in main memory. `void`: tensors whose values nobody needs again; they come back as zeros.

        Raises RLTrainError when there is no room for the bytes; then all is where it was. (What is pinned in main memory is
        asked for before anything on a GPU is given back.)
        """
        if self._away is not None:
            return 0
        kept = _storages(tensors)
        worthless = {key: value for key, value in _storages(void).items() if key not in kept}
        devices = {value.device.type for value in (*kept.values(), *worthless.values())}
        kind = "cuda" if "cuda" in devices else "cpu"
        moved, dropped = (
            [one for one in found.values() if one.device.type == kind] for found in (kept, worthless)
        )
        if kind == "cuda":
            try:
                self._away = _OutOfAccelerator(moved, dropped)
            except RuntimeError as error:  # torch's, that of memory which cannot be pinned too
                raise RLTrainError(
                    f"{self._owner}: its tensors cannot be moved from the GPU to pinned main memory ({first_line(error)}); "
                    "give its node more memory, or set placement.residency: keep"
                ) from error
        else:
            try:
                self._away = _OutOfMemory(moved, dropped, self._folder)
            except OSError as error:
                raise RLTrainError(
                    f"{self._owner}: its tensors cannot be moved to {self._folder or tempfile.gettempdir()} "
                    f"({reason(error)}); have TMPDIR name a folder with more room, or set placement.residency: keep"
                ) from error
        return self._away.bytes

    def onload(self) -> int:
        """Everything is as it was before `offload`; how many bytes. Nothing away: nothing, and 0.

        Raises RLTrainError when a GPU has no room for them, or the file is damaged.
        """
        if self._away is None:
            return 0
        try:
            self._away.back()
        except RuntimeError as error:
            if not isinstance(self._away, _OutOfAccelerator):
                raise
            raise RLTrainError(
                f"{self._owner}: {self._away.bytes / 1e9:.1f} GB of tensors cannot be moved back to the GPU "
                f"({first_line(error)}); another process has kept memory there: see with nvidia-smi which one, or run "
                "without samplers on this device (placement.mode: disaggregated)"
            ) from error
        size, self._away = self._away.bytes, None
        return size

    def require(self, doing: str) -> None:
        """Raises RLTrainError while the tensors are away: `doing` needs them."""
        if self._away is not None:
            raise RLTrainError(f"{self._owner}: its tensors are offloaded; onload them before {doing}")


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of all their storages; what several share counts once."""
    return sum(storage.nbytes() for storage in _storages(tensors).values())


def _storages(tensors: Iterable[Tensor]) -> dict[tuple[torch.device, int], torch.UntypedStorage]:
    """Each storage once, those without memory left out."""
    found = {}
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        if storage.device.type != "meta" and storage.nbytes():
            found[(storage.device, storage.data_ptr())] = storage
    return found


class _Away:
    """`bytes`: of the memory that was given back."""

    bytes = 0

    def back(self) -> None:
        """Puts all of it back."""
        raise NotImplementedError


class _OutOfMemory(_Away):
    """Whole pages of storages in main memory, in a file; edges of storages stay, as pages are shared there."""

    def __init__(
        self, kept: list[torch.UntypedStorage], void: list[torch.UntypedStorage], folder: Path | None
    ):
        self._kept = [(storage, *_pages(storage)) for storage in kept if not storage.is_pinned()]
        dropped = [*self._kept, *((storage, *_pages(storage)) for storage in void if not storage.is_pinned())]
        # It is open until all is back.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)
        self._written: list[tuple[int, int, int]] = []  # address, place in the file, bytes
        try:
            self._write()
        except BaseException:
            self._close()
            raise
        self.bytes = sum(stop - start for _, start, stop in dropped if _drop(start, stop))
        _trim()

    def _write(self) -> None:
        """Nothing is dropped before all is written: a full disk must not cost anything."""
        place = 0
        for _, start, stop in self._kept:
            for address in range(start, stop, _BLOCK):
                data = _bytes_at(address, min(_BLOCK, stop - address))
                if not np.frombuffer(data, np.uint64).any():
                    continue
                written = 0
                while written < len(data):
                    written += os.pwrite(self._file.fileno(), data[written:], place + written)
                self._written.append((address, place, len(data)))
                place += len(data)

    def back(self) -> None:
        """See `_Away`. Closing the file frees its pages, those too that were not on the disk yet."""
        for address, place, size in self._written:
            data, read = _bytes_at(address, size), 0
            while read < size:
                count = os.preadv(self._file.fileno(), [data[read:]], place + read)
                if not count:
                    raise RLTrainError("the file of offloaded tensors has become shorter: some are lost")
                read += count
        self._close()


class _OutOfAccelerator(_Away):
    """Storages of a GPU, in pinned main memory."""

    def __init__(self, kept: list[torch.UntypedStorage], void: list[torch.UntypedStorage]):
        devices = {storage.device for storage in (*kept, *void)}
        self._void = [(storage, storage.nbytes()) for storage in void]
        self._kept: list[tuple[torch.UntypedStorage, Tensor]] = []
        for device in devices:
            torch.cuda.synchronize(device)  # gathers and sums of other streams may still read or write
        for storage in kept:
            there = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True)
            there.copy_(_as_bytes(storage), non_blocking=True)
            self._kept.append((storage, there))
        for device in devices:
            torch.cuda.synchronize(device)
        self.bytes = sum(storage.nbytes() for storage in (*kept, *void))
        for storage in (*kept, *void):
            storage.resize_(0)
        torch.cuda.empty_cache()

    def back(self) -> None:
        """See `_Away`."""
        for storage, there in self._kept:
            storage.resize_(there.nbytes)
            _as_bytes(storage).copy_(there, non_blocking=True)
        for storage, size in self._void:
            storage.resize_(size)
            _as_bytes(storage).zero_()
        for device in {storage.device for storage, _ in (*self._kept, *self._void)}:
            torch.cuda.synchronize(device)


def _as_bytes(storage: torch.UntypedStorage) -> Tensor:
    """A tensor of its own: those that share the storage may be ones of inference mode, which are not written to."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _pages(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Address of the first whole page in it, and the one after the last."""
    start = -(-storage.data_ptr() // _PAGE) * _PAGE
    return start, max(start, (storage.data_ptr() + storage.nbytes()) // _PAGE * _PAGE)


def _bytes_at(address: int, size: int) -> memoryview[Any]:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _drop(start: int, stop: int) -> bool:
    """Whether the system has taken the pages: else, of locked ones, they stay as they are, which costs nothing but them."""
    return start < stop and not _libc().madvise(
        ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_DONTNEED
    )


def _trim() -> None:
    """What was freed before, of activations and gradients, goes back to the system as well; without glibc it stays."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
