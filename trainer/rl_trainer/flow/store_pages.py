"""Pages of Ray's object store that a process has touched, which count as its own memory although all of a node share them.

A process maps the whole store. What goes through it from place to place, in the end all of it, would so be in the resident
set of everybody that reads or writes much, and in what a container's limit or Ray's memory monitor sees of them.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_STORE = "plasma"


def forget_store_pages(maps: Path = _MAPS) -> None:
    """Takes the store's pages out of this process's resident set; they stay in the store and come back when they are read.

    At any moment, whatever other threads do. Where there is no such list of mappings (not Linux), nothing happens.
    """
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return
    for start, end in store_mappings(lines):
        # What this throws away of a private mapping would be lost, of a shared one it is the file's.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def store_mappings(lines: list[str]) -> list[tuple[int, int]]:
    """Beginnings and ends of the shared mappings of object stores in the lines of /proc/PID/maps."""
    found = []
    for line in lines:
        place, rights, *rest = line.split(maxsplit=5)
        if rights.endswith("s") and len(rest) == 4 and Path(rest[3].split()[0]).name.startswith(_STORE):
            start, _, end = place.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
