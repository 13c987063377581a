"""Marks that the processes of a node share: a small file in memory, and locks on it that end with their process.

Each group of slots has a lock, of the one who looks at what a mark names, and each slot another one, of all who keep what
its mark names. They are POSIX locks: the kernel releases them when the process dies, however it dies, and a forked child has
none. Within one process they keep nobody out, so that what it holds is also written down here.

The file is of one Ray node and one user. It is removed at the end of a Ray that a run has started. One that is left over, of
a run that was killed or of a Ray that others have started, is removed by whoever opens another one and sees it unused.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from rl_trainer.flow.node_checks import GROUPS, MARK_BYTES, SLOTS_OF_GROUP

_FOLDER: Final = Path("/dev/shm")
_NAME: Final = "rltrain-checks"
# Of two releases on one Ray, those with another layout have another file.
_LAYOUT: Final = f"{GROUPS}x{SLOTS_OF_GROUP}x{MARK_BYTES}"
_SIZE: Final = GROUPS * SLOTS_OF_GROUP * MARK_BYTES
# Bytes behind the marks that stand for locks; there is nothing in them.
_USED: Final = _SIZE
_TAKEN: Final = _USED + 1
_KEPT: Final = _TAKEN + GROUPS
# A file that is just being removed is not to be used; then there is a new one.
_TRIES, _TRY_SECONDS = 50, 0.001

_here: dict[tuple[int, str], SharedMarks | None] = {}
_one_at_a_time = threading.Lock()


class SharedMarks:
    """Implements `Marks`. One in a process for each file: closing another would end the locks of both."""

    def __init__(self, path: Path) -> None:
        """Opens the file, and makes it where there is none. Raises OSError where it cannot, or it is somebody else's."""
        self._file = _opened(path)
        weakref.finalize(self, os.close, self._file).atexit = False
        self._process = os.getpid()
        self._mutex = threading.RLock()  # holders end at any moment, also within what it guards
        self._taken: set[int] = set()
        self._keepers: dict[int, set[object]] = {}

    def take(self, group: int) -> bool:
        """See `Marks.take`."""
        with self._mutex:
            if group in self._taken or not _lock(self._file, _TAKEN + group):
                return False
            self._taken.add(group)
            return True

    def leave(self, group: int) -> None:
        """See `Marks.leave`."""
        with self._mutex:
            self._taken.discard(group)
            _unlock(self._file, _TAKEN + group)

    def read(self, slot: int) -> bytes:
        """See `Marks.read`."""
        return os.pread(self._file, MARK_BYTES, slot * MARK_BYTES)

    def write(self, slot: int, mark: bytes) -> None:
        """See `Marks.write`."""
        os.pwrite(self._file, mark, slot * MARK_BYTES)

    def is_kept(self, slot: int) -> bool:
        """See `Marks.is_kept`."""
        with self._mutex:
            if self._keepers.get(slot) or not _lock(self._file, _KEPT + slot):
                return True
            _unlock(self._file, _KEPT + slot)
            return False

    def keep(self, slot: int, holder: object) -> None:
        """See `Marks.keep`."""
        keeper = object()
        with self._mutex:
            keepers = self._keepers.setdefault(slot, set())
            keepers.add(keeper)  # first: what ends meanwhile leaves the lock
            end = weakref.finalize(holder, self._end, slot, keeper)
            end.atexit = False
            try:
                fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _KEPT + slot)
            except BaseException:  # also of a signal: the slot would be kept for ever
                end()
                raise

    def _end(self, slot: int, keeper: object) -> None:
        """Of a holder: its memory is given back right after this."""
        if os.getpid() != self._process:  # a fork, in which nobody may ever leave the mutex
            return
        with self._mutex:
            keepers = self._keepers[slot]
            keepers.discard(keeper)
            if not keepers:
                _unlock(self._file, _KEPT + slot)


def marks_of(node: str, folder: Path = _FOLDER) -> SharedMarks | None:
    """Those of a Ray node, by its id, for this process; None: it cannot have them, and does without."""
    key = os.getpid(), node
    with _one_at_a_time:
        if key not in _here:
            path, marks = marks_file(node, folder), None
            try:
                _remove_unused(path)
                marks = SharedMarks(path)
            except BlockingIOError:  # removed again and again; the next time it may be there
                return None
            except OSError:  # there cannot be any, also later
                pass
            _here.clear()  # of a Ray that is over
            _here[key] = marks
        return _here[key]


def remove_marks(node: str, folder: Path = _FOLDER) -> None:
    """Those of a Ray node that is over."""
    with suppress(OSError):
        marks_file(node, folder).unlink()


def marks_file(node: str, folder: Path = _FOLDER) -> Path:
    """That of a Ray node, by its id."""
    return folder / f"{_NAME}-{os.getuid()}-{node}-{_LAYOUT}"


def _remove_unused(own: Path) -> None:
    """All files of this user that nobody uses, but `own`."""
    for path in own.parent.glob(f"{_NAME}-{os.getuid()}-*"):
        with suppress(OSError):
            if path != own:
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if _lock(file, _USED) and _is_there(path, os.fstat(file)):
                        path.unlink()
                finally:
                    os.close(file)


def _opened(path: Path) -> int:
    for _ in range(_TRIES):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
                raise PermissionError(f"{path}: somebody else's")
            if _lock(file, _USED, fcntl.LOCK_SH) and _is_there(path, about):
                os.posix_fallocate(file, 0, _SIZE)  # no write shall lack room later
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        time.sleep(_TRY_SECONDS)
    raise BlockingIOError(f"{path}: removed again and again")


def _is_there(path: Path, about: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), about)
    except FileNotFoundError:
        return False


def _lock(file: int, byte: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether this process has the lock now; False: another one has it."""
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(file: int, byte: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)
