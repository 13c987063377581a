"""The output of a job: parts, each there whole or not at all, and the manifest of the job they belong to."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from rl_api.errors import InvalidConfig, RLTrainError, RunFolderBusy
from rl_generate.encoding import Format, count
from rl_generate.job import difference
from rl_generate.rows import Columns
from rl_generate.source import Part
from rl_trainer.error_text import reason
from rl_trainer.storage.files import dump_json
from rl_trainer.storage.remote_folder import RemoteFolder, is_s3

MANIFEST: Final = "_job.json"
SUMMARY: Final = "_summary.json"
# Names that begin with _ or . are no data to all that read folders of JSONL or parquet.
_LOCK: Final = ".lock"
_PART: Final = re.compile(r"part-\d{6,}\.(jsonl|parquet)")


class Folder(Protocol):
    """Where the output lies; a file in it is there whole or not at all."""

    def names(self) -> list[str]:
        """What is in it; nothing when it is not there."""

    def read(self, name: str) -> bytes | None:
        """A file; None when there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""

    def close(self) -> None:
        """Let go of it."""


class LocalFolder:
    """A folder on a disk, of one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: TextIO | None = None
        with self._saying():
            path.mkdir(parents=True, exist_ok=True)
            while self._lock is None:
                self._lock = self._locked()
        for left in path.glob(".part-*.tmp"):  # of one that was killed
            left.unlink(missing_ok=True)

    def _locked(self) -> TextIO | None:
        """The lock; None: the one who had it has removed its file meanwhile, and others would lock another one."""
        lock = (self._path / _LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunFolderBusy(
                f"--output {self._path}: another rltrain generate is writing there; wait for it or choose another folder"
            ) from None
        except OSError:
            return lock  # a file system without locks: nothing to be known there
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(self._path / _LOCK)):
                return lock
        lock.close()
        return None

    def names(self) -> list[str]:
        """See `Folder.names`."""
        return sorted(name for name in os.listdir(self._path) if name != _LOCK)

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See `Folder.write`."""
        temporary = self._path / f".{name}.tmp"
        with self._saying():
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._path / name)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise

    def close(self) -> None:
        """See `Folder.close`."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self._path / _LOCK).unlink()
            self._lock.close()
            self._lock = None

    @contextlib.contextmanager
    def _saying(self) -> Any:
        try:
            yield
        except OSError as error:
            raise RLTrainError(
                f"--output {self._path}: cannot be written ({reason(error)}); free some space or choose another folder; "
                "the same command goes on with what is missing"
            ) from None


class StoreFolder:
    """A folder in an object store: an object is there whole or not at all by itself."""

    def __init__(self, uri: str) -> None:
        self._folder = RemoteFolder(uri)
        self._uri = uri

    def names(self) -> list[str]:
        """See `Folder.names`."""
        return self._folder.within(f"--output {self._uri}: cannot be listed", self._folder.names)

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        return self._folder.within(
            f"--output {self._uri}: {name} cannot be read", lambda: self._folder.read(name)
        )

    def write(self, name: str, content: bytes) -> None:
        """See `Folder.write`."""
        what = f"--output {self._uri}: {name} cannot be written"
        self._folder.within(what, lambda: self._folder.write(name, content))

    def close(self) -> None:
        """See `Folder.close`."""


def open_folder(address: str) -> Folder:
    """The output folder.

    Raises:
        InvalidConfig: it is no place for one.
        RunFolderBusy: another job writes there.
    """
    if "://" not in address:
        path = Path(address).expanduser()
        if path.exists() and not path.is_dir():
            raise InvalidConfig(f"--output {address}: found a file, allowed: a folder, or s3://bucket/folder")
        return LocalFolder(path)
    if not is_s3(address):
        raise InvalidConfig(f"--output: found {address}, allowed: a folder, or s3://bucket/folder")
    return StoreFolder(address)


def name_of(part: int, format: Format) -> str:
    """The file of a part: names in their order are parts in theirs."""
    return f"part-{part:06d}.{format}"


def begin(folder: Folder, address: str, manifest: dict[str, Any]) -> bool:
    """Begin the job of `manifest`, or go on with it: then True.

    Raises:
        InvalidConfig: the folder holds something else, or the output of a job with other options.
    """
    content = folder.read(MANIFEST)
    if content is None:
        if found := [name for name in folder.names() if not name.startswith((".", "_"))]:
            raise InvalidConfig(
                f"--output {address}: found {found[0]} and no {MANIFEST} of this command, allowed: an empty or new folder"
            )
        folder.write(MANIFEST, (dump_json(manifest, indent=2) + "\n").encode())
        return False
    try:
        found_manifest = json.loads(content)
    except ValueError:
        raise InvalidConfig(f"--output {address}: {MANIFEST} is no JSON; choose another folder") from None
    if why := difference(found_manifest, manifest):
        raise InvalidConfig(
            f"--output {address}: holds another job: {why}; give the same options to go on with it, or another folder"
        )
    return True


def done_parts(folder: Folder, parts: list[Part], columns: Columns, format: Format) -> dict[int, int]:
    """Parts that are there with all their rows -> rows of them with an `error`. A part that was damaged is not there."""
    names = set(folder.names())
    found = {}
    for part in parts:
        name = name_of(part.number, format)
        if name in names and (content := folder.read(name)) is not None:
            counted = count(content, columns, format)
            if counted is not None and counted[0] == part.rows:
                found[part.number] = counted[1]
    return found
