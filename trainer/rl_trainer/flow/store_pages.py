"""Pages of Ray's object store that a process has touched, which count as its own memory although all of a node share them.

A process maps the whole store. What goes through it from place to place, in the end all of it, would so be in the resident
set of everybody that reads or writes much, and in what a container's limit or Ray's memory monitor sees of them.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy.typing as npt

# Bytes of the store that a process may keep in its resident set, where it reads or writes weights: with them and three
# blocks, publishing stays below 300 MB. To write a page that is still there takes a quarter of the time of one that is not.
KEPT_BYTES = 208 << 20
# Linux 5.14 and later; to others it means nothing, and nothing happens.
_MADV_POPULATE_READ = 22
_MAPS = Path("/proc/self/maps")
_STATUS = Path("/proc/self/status")
_STORE = "plasma"
# Of what is elsewhere nothing tells how much is resident but for a walk through all of it.
_MEMORY = " /dev/shm/"
# Not empty: this process's store was found to be there, and the list of mappings need not be read for what may stay.
_in_memory: list[bool] = []
# Stores in memory that this process has mapped: beginning and end of each, and what the list of mappings says of it.
_stores: list[tuple[tuple[int, int], list[str]]] = []
# Beginnings and ends of what is read all the time.
_used: dict[int, tuple[int, int]] = {}
_numbers = count()


def use_store_pages(array: npt.NDArray[Any]) -> None:
    """As long as the array lives its pages are not forgotten, and do not count for `keep`: it is read all the time."""
    start, number = int(array.ctypes.data), next(_numbers)
    _used[number] = start, start + array.nbytes
    weakref.finalize(array, _used.pop, number, None).atexit = False


def forget_store_pages(maps: Path = _MAPS, *, keep: int = 0) -> bool:
    """Takes the store's pages out of this process's resident set; they stay in the store and come back when they are read.

    At any moment, whatever other threads do. Where there is no such list of mappings (not Linux), nothing happens. Pages of
    a store in /dev/shm stay as long as no more than `keep` bytes of shared memory are resident, and what is used
    (`use_store_pages`). Returns whether they were more.
    """
    used = sorted(_used.copy().values())
    few = shared_bytes() <= keep + sum(last - first for first, last in used)
    if few and _in_memory:
        return False
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return False
    if few:
        found = len(store_mappings(lines))
        lines = [line for line in lines if _MEMORY not in line]
        if found and not store_mappings(lines):
            _in_memory.append(True)
    for mapping in store_mappings(lines):
        for start, end in _between(used, *mapping):
            # What this throws away of a private mapping would be lost, of a shared one it is the file's.
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
            )
    return not few


def places_in_store(arrays: Sequence[npt.NDArray[Any]], maps: Path = _MAPS) -> list[str | None]:
    """Where the bytes of each lie, by a name that all processes of the node have for it; None: not in a store in /dev/shm.

    A process maps such a store once, and as a whole.
    """
    found = [_place(one) for one in arrays]
    if None in found:
        with suppress(OSError):
            lines = [line for line in maps.read_text().splitlines() if _MEMORY in line]
            _stores[:] = [(mapping, line.split()) for line in lines for mapping in store_mappings([line])]
        found = [_place(one) for one in arrays]
    return found


def _place(array: npt.NDArray[Any]) -> str | None:
    start = int(array.ctypes.data)
    for (first, last), (_, _, offset, device, number, *_) in _stores:
        if first <= start and start + array.nbytes <= last:
            return f"{device} {number} {int(offset, 16) + start - first} {array.nbytes}"
    return None


def _between(used: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What of the pages from `start` to `end` is not in `used`, which are in order."""
    for first, last in used:
        if start < first < end:
            yield start, first // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:
            start = max(start, -(-last // mmap.PAGESIZE) * mmap.PAGESIZE)
    if start < end:
        yield start, end


def recall_store_pages(start: int, size: int) -> None:
    """Takes pages that were forgotten back into this process's resident set, before they are written: many at a time, in a
    fifth of the time that it takes to have each at its first byte. Where there are none at `start`, nothing happens.
    """
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    length = ctypes.c_size_t(start + size - first)
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), length, _MADV_POPULATE_READ)


def shared_bytes(status: Path = _STATUS) -> int:
    """Bytes of shared memory in this process's resident set, the store's among them; 0 where nothing tells (not Linux)."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem:"))


def store_mappings(lines: list[str]) -> list[tuple[int, int]]:
    """Beginnings and ends of the shared mappings of object stores in the lines of /proc/PID/maps."""
    found = []
    for line in lines:
        place, rights, *rest = line.split(maxsplit=5)
        if rights.endswith("s") and len(rest) == 4 and Path(rest[3].split()[0]).name.startswith(_STORE):
            start, _, end = place.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
