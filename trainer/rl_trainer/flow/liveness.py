"""Is a consumer alive, and how much has it delivered? Answers that survive SIGKILL, without heartbeats.

Each consumer process keeps a small file: it holds a POSIX lock on it, which the kernel releases when the
process dies however it dies, and writes into its memory map, before each item is handed out, how many it has
delivered. Whoever reads the file knows both exactly. A process that is merely slow or stopped keeps its lock:
no lease ever expires under a live consumer, so nothing is delivered twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import tempfile

_SIZE = 4096


class Progress:
    """The consumer's side: create the file, hold its lock, count."""

    def __init__(self, name: str) -> None:
        folder = os.path.join(tempfile.gettempdir(), f"rltrain-channels-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(folder, f"{name}-{os.getpid()}")
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._file, _SIZE)
        # Not inherited by forked children, unlike flock.
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A plain 8-byte store into shared memory: whole or not at all, and there for readers after a SIGKILL.
        self._count = ctypes.c_uint64.from_buffer(mmap.mmap(self._file, _SIZE))

    @property
    def delivered(self) -> int:
        """Items handed out so far."""
        return self._count.value

    @delivered.setter
    def delivered(self, total: int) -> None:
        self._count.value = total

    def close(self) -> None:
        """Release the lock and remove the file: from now on the consumer counts as gone."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._file)


class Probe:
    """The other side, in any process of the same machine: opens the file once and may outlive its name."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)

    def look(self) -> tuple[bool, int]:
        """`(alive, delivered)`. The count is final when the process is dead."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            alive = True
        else:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
            alive = False
        return alive, struct.unpack("=Q", os.pread(self._file, 8, 0))[0]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def look_at(path: str) -> tuple[bool, int]:
    """`Probe(path).look()` once; `(False, 0)` when there is no such file."""
    try:
        with contextlib.closing(Probe(path)) as probe:
            return probe.look()
    except FileNotFoundError:
        return False, 0
