"""A model folder of the driver's node that actors on every node can open: its files travel through Ray's object store.

They are there only while somebody holds what `share_folder` gave, and a node's copy only while somebody has it open: a model
in memory needs neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from rl_api.errors import ModelError
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.storage.remote_folder import RemoteFolder

# What lies beside the copies for longer, and nobody has open, is of processes that were killed.
_LEFT_SECONDS = 60.0
# Bytes/s at which a folder reaches a process at least: through the object store and from a disk.
READ_RATE = 50e6
# Bytes of a file that are read, sent and written at once.
_PIECE = 32 << 20


@dataclass(frozen=True)
class SharedFolder:
    """A folder at `path` on `node`; `files`: names and contents (uint8 arrays in pieces), none where there is one node only.

    `key` names its copies: another one for other files. `size`: bytes of all its files. `stamps`: size and time of the last
    change (ns since 1970) of each of `files`, by which another node knows the folder where it has it too; none: it does not.
    `uri`: where the files are, in an object store that every node reads, and not at `path`; `stored`: name there, name in
    the folder, size and SHA-256 of each.
    """

    path: Path
    node: str
    key: str
    files: tuple[tuple[str, tuple[ray.ObjectRef[Any], ...]], ...]
    size: int
    stamps: tuple[tuple[int, int], ...] = ()
    uri: str = ""
    stored: tuple[tuple[str, str, int, str], ...] = ()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Path]:
        """The folder on this node: the original, also where this node has the same volume, or a copy that the first makes
        who asks, and the last removes.

        Raises ModelError when the copy cannot be written, or a file is not what it was; Unavailable of an object store.
        """
        if not self.uri and self._is_original():
            yield self.path
            return
        copy = Path(tempfile.gettempdir()) / "rltrain-models" / self.key
        try:
            lock = _lock(copy, fcntl.LOCK_SH)
            while lock is None:
                with _alone(copy):
                    lock = _lock(copy, fcntl.LOCK_SH)  # another one may have made it meanwhile
                    if lock is None:
                        lock = self._write(copy)
        except OSError as error:
            raise ModelError(
                f"model folder {self.path}: its copy {copy} cannot be written ({error.strerror}); free some space there, or "
                "set TMPDIR on the nodes"
            ) from error
        try:
            yield copy
        finally:
            os.close(lock)
            _remove_unused(copy)

    def _is_original(self) -> bool:
        if not self.files or ray.get_runtime_context().get_node_id() == self.node:
            return True
        return self._is_here()

    def _is_here(self) -> bool:
        """Whether `path` holds the same files on this node. A folder of this node alone can have the same path: every file
        must be as old, too, to the nanosecond."""
        if not self.stamps:
            return False
        try:
            for (name, _), stamp in zip(self.files, self.stamps, strict=True):
                file = self.path / name
                if _stamp(file.stat()) != stamp or not os.access(file, os.R_OK):
                    return False
        except OSError:
            return False
        return True

    def _write(self, copy: Path) -> int | None:
        """Makes the copy, and removes what killed processes left beside it.

        What it returns keeps the copy from being removed, until it is closed; None in the odd case that it is gone already.
        """
        for other in copy.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if other != copy and time.time() - other.stat().st_mtime > _LEFT_SECONDS:
                    _remove_unused(other)
        half = copy.with_name(f".{self.key}-{uuid.uuid4().hex}")
        half.mkdir()
        # Held on: who opens the copy and lets go of it first must not remove it.
        lock = _lock(half, fcntl.LOCK_SH)
        try:
            for name, pieces in self.files:
                (half / name).parent.mkdir(parents=True, exist_ok=True)
                with (half / name).open("wb") as file:
                    file.writelines(map(ray.get, pieces))  # no name for a piece: one at a time
            self._download(half)
            os.rename(half, copy)
        except BaseException:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(half, ignore_errors=True)
            raise
        return lock

    def _download(self, folder: Path) -> None:
        """The files that are in an object store, checked."""
        remote = RemoteFolder(self.uri)

        def work() -> None:
            for there, name, size, digest in self.stored:
                target = folder / name
                remote.download(there, target)
                if target.stat().st_size != size or sha256_of(target) != digest:
                    raise ModelError(f"{self.uri}/{there} is not what it was when it was written")

        if self.stored:
            remote.within(f"{self.uri} cannot be read", work)


@contextlib.contextmanager
def _alone(copy: Path) -> Iterator[None]:
    """Within the block no other process of this node writes the copy: all want it at once, and the disk has room for one.

    Who asks for the folder bounds the wait with the deadline of the call; a process that dies lets go.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    file = copy.with_name(f"{copy.name}.lock")
    file.touch()
    while (lock := _lock(file, fcntl.LOCK_EX)) is None:
        file.touch()  # the one before has removed it
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(lock)


def _lock(path: Path, kind: int) -> int | None:
    """A lock on the folder or file until what is returned is closed; None where there is no such thing (any more)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, kind)
        same = os.path.samestat(os.fstat(handle), os.stat(path))  # else another one was there first
    except FileNotFoundError:
        same = False
    except OSError:
        os.close(handle)
        raise
    if not same:
        os.close(handle)
    return handle if same else None


def _remove_unused(path: Path) -> None:
    """Removes a copy that nobody has open, or the lock file of a process that was killed."""
    with contextlib.suppress(OSError):  # BlockingIOError: somebody has
        lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        gone = path.with_name(f".{uuid.uuid4().hex}")
        try:
            if path.is_file():
                path.unlink()
                return
            os.rename(path, gone)  # at once: who asks for it now makes a new one
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(lock)


def share_folder(path: Path | SharedFolder, names: Collection[str] | None = None) -> SharedFolder:
    """Makes `path` open to all nodes of the Ray cluster, or of it the files `names`; on one of one node nothing is copied.
    What every node opens by itself stays as it is.

    Errors: see `put_folder`.
    """
    if isinstance(path, SharedFolder):
        return path
    node = ray.get_runtime_context().get_node_id()
    others = [one for one in ray.nodes() if one["Alive"] and one["NodeID"] != node]
    if not others:
        return SharedFolder(path, node, "", (), sum(file.stat().st_size for _, file in _files(path, names)))
    return put_folder(path, node, names)


def stored_folder(uri: str, files: Mapping[str, tuple[int, str]], *, within: str = "") -> SharedFolder:
    """Files of a folder in an object store, as a folder that every node opens by itself; nothing is read now.

    Args:
        uri: of the folder.
        files: size and SHA-256 by name.
        within: a folder in it that all of them are in, which is then the folder.
    """
    stored = tuple(
        (name, name.removeprefix(f"{within}/") if within else name, size, digest)
        for name, (size, digest) in sorted(files.items())
    )
    key = hashlib.sha256("\0".join((uri, *(f"{name}\0{digest}" for _, name, _, digest in stored))).encode())
    size = sum(size for _, _, size, _ in stored)
    return SharedFolder(Path(uri), "", key.hexdigest()[:32], (), size, uri=uri, stored=stored)


def put_folder(path: Path, node: str, names: Collection[str] | None = None) -> SharedFolder:
    """Puts every file below `path`, or those of them in `names`, into the object store, a piece at a time.

    Raises ModelError when one cannot be read.
    """
    key, files, stamps = hashlib.sha256(f"{node}\0{path}\0".encode()), [], list[tuple[int, int]]()
    try:
        for name, file in _files(path, names):
            stamps.append(_stamp(file.stat()))
            key.update("".join(f"{part}\0" for part in (name, *stamps[-1])).encode())
            files.append((name, tuple(map(ray.put, _pieces(file)))))
    except OSError as error:
        raise ModelError(
            f"model folder {path}: {error.filename} cannot be read ({error.strerror})"
        ) from error
    size = sum(size for size, _ in stamps)
    return SharedFolder(path, node, key.hexdigest()[:32], tuple(files), size, tuple(stamps))


def _stamp(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _files(path: Path, names: Collection[str] | None) -> list[tuple[str, Path]]:
    """Every file below `path`, or those of them in `names`, each with its name."""
    found = [(one.relative_to(path).as_posix(), one) for one in path.rglob("*") if one.is_file()]
    return sorted(one for one in found if names is None or one[0] in names)


def _pieces(file: Path) -> Iterator[npt.NDArray[np.uint8]]:
    with file.open("rb") as stream:
        while len(piece := np.fromfile(stream, np.uint8, _PIECE)):
            yield piece
            del piece
