"""A folder in an object store (s3://bucket/folder); every wait in it has a deadline."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rl_api.errors import RLTrainError, Unavailable
from rl_api.place_rules import is_s3_address
from rl_trainer.error_text import reason

Result = TypeVar("Result")
# Seconds in which at least one byte has to move.
STALLED_SECONDS = 600.0
# A manifest holds the state of the buffer; who keeps another file under its name does not fill our memory.
MOST_READ = 256 << 20
_AT_S3 = (
    "Look at bucket and rights, and at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL (on a cluster: "
    "keys of a Secret that spec.secrets names)."
)
_LOOK_SECONDS = 1.0
_PIECE = 8 << 20
# Parts of a file that is written piece by piece; S3 takes 10,000.
_MOST_PARTS = 9_000


def is_s3(uri: str) -> bool:
    """Whether a URI is of an object store that speaks S3."""
    return uri.startswith(("s3://", "s3a://"))


def filesystem_of(uri: str) -> tuple[Any, str]:
    """File system and path there of an address that may be opened.

    Raises ValueError for any other: fsspec alone knows a dozen schemes, among them requests to any host and local files.
    """
    if not is_s3_address(uri):
        raise ValueError(f"found {uri!r}, allowed: s3://bucket/folder, no .. in it")
    import fsspec  # slow to import, and only needed here

    files, root = fsspec.core.url_to_fs(uri)
    return files, str(root).rstrip("/")


def advice(uri: str) -> str:
    """A sentence on what to look at when a place cannot be read or written."""
    return _AT_S3 if is_s3(uri) else "Look at the place and its rights."


class ChangedError(Exception):
    """What a store gives of a file does not match the checksum that it has itself of it."""


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """Raises ChangedError where the library that reads the file `name` finds that."""
    try:
        yield
    except Exception as error:
        if (
            type(error).__name__ != "FlexibleChecksumError"
        ):  # botocore's, which is installed with rltrain[s3] only
            raise
        raise ChangedError(f"{name} does not match its checksum") from error


class RemoteFolder:
    """One folder; names are relative to it, with slashes.

    Args:
        uri: for example s3://bucket/runs/arithmetic. A bucket is never made: it may be a misspelt one.
        stalled: seconds without a byte moved after which `within` gives up.
    """

    def __init__(self, uri: str, *, stalled: float = STALLED_SECONDS) -> None:
        self.uri = uri.rstrip("/")
        self._stalled = stalled
        self._moved = time.monotonic()

    def within(self, what: str, work: Callable[[], Result], first: str = "") -> Result:
        """Run `work`, which calls the other methods.

        On a thread, since the libraries behind fsspec offer no deadline for a whole copy. One that never
        returns is left behind as a daemon: it holds a connection, not the run.

        Args:
            what: begin of the sentence that says what went wrong.
            work: what is to be done.
            first: advice that comes before what can be said of the place.

        Raises:
            Unavailable: it went wrong, or no byte has moved for too long. RLTrainErrors pass.
        """
        results: list[Result] = []
        failures: list[Exception] = []

        def body() -> None:
            try:
                results.append(work())
            except Exception as error:  # handed to the caller below
                failures.append(error)

        thread = threading.Thread(target=body, name="remote-folder", daemon=True)
        self._moved = time.monotonic()
        thread.start()
        while thread.is_alive() and time.monotonic() - self._moved < self._stalled:
            thread.join(min(_LOOK_SECONDS, self._stalled))
        if results:
            return results[0]
        advices = " ".join(filter(None, (first, advice(self.uri))))
        if not failures:
            raise Unavailable(f"{what}: nothing has moved for {self._stalled:g} s. {advices}")
        error = failures[0]
        if isinstance(error, RLTrainError):
            raise error
        if isinstance(error, ImportError):
            raise Unavailable(f"{what}: {reason(error)}. Install rltrain[s3] for s3://.") from error
        raise Unavailable(f"{what}: {reason(error).rstrip('.')}. {advices}") from error

    def names(self, name: str = "") -> list[str]:
        """Files and folders in it, or in its folder `name`; none when it is not there."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._path(name).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in paths})

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""
        return bool(self._files.exists(self._path(name)))

    def read(self, name: str) -> bytes | None:
        """Content of a small file; None when there is none. Raises OSError for one of `MOST_READ` bytes and more."""
        try:
            if self.size(name) >= MOST_READ:
                raise OSError(f"{name} is larger than {MOST_READ >> 20} MiB")
            with _sound(name):
                content: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return content

    def size(self, name: str) -> int:
        """Bytes of a file. Raises FileNotFoundError when there is none."""
        self._files.invalidate_cache()
        return int(self._files.size(self._path(name)))

    def sizes(self) -> dict[str, int | None]:
        """Bytes of every file in it and in its folders, by name; None: something else."""
        self._files.invalidate_cache()
        root = self._place[1]
        return {
            path.removeprefix(root).lstrip("/"): entry["size"] if entry["type"] == "file" else None
            for path, entry in self._files.find(root, detail=True).items()
        }

    def sha256(self, name: str) -> str:
        """SHA-256 of a file, in hex, without a copy of it here. Raises ChangedError as `read` and `download`."""
        digest = hashlib.sha256()
        with _sound(name), self._files.open(self._path(name), "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                self._moved = time.monotonic()
        return digest.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, in one piece."""
        self._make_parent(name)
        self._files.pipe_file(self._path(name), content)
        self._moved = time.monotonic()

    def upload(self, source: Path, name: str) -> None:
        """Copy a file there; it counts as copied when its size was read back."""
        self._make_parent(name)
        self._files.put_file(str(source), self._path(name), callback=self._callback())
        self._files.invalidate_cache()
        size, found = source.stat().st_size, self._files.size(self._path(name))
        if found != size:
            raise OSError(f"{name} arrived with {found:,} bytes instead of {size:,}")

    def copy(self, source: str, name: str) -> None:
        """Copy a file within the folder: an object store does it by itself. It counts when its size was read back."""
        self._make_parent(name)
        self._files.cp_file(self._path(source), self._path(name))
        if (found := self.size(name)) != (size := self.size(source)):
            raise OSError(f"{name} arrived with {found:,} bytes instead of {size:,}")
        self._moved = time.monotonic()

    def writer(self, name: str, size: int) -> RemoteWriter:
        """A file of `size` bytes there that is written piece by piece; of these one is in memory."""
        self._make_parent(name)
        return RemoteWriter(self, name, size)

    def abort_parts(self, name: str, ours: Callable[[str], bool] = lambda name: True) -> None:
        """Forget parts of files below the folder `name` (empty: all) that nobody will finish, as their writers were killed.

        Who may not look for such parts, or cannot, leaves them to the bucket's own rules. `ours`: whether those of a file
        are meant, by its name below the folder.
        """
        if not is_s3(self.uri):
            return
        bucket, _, key = self._path(name).strip("/").partition("/")
        prefix = f"{key}/" if key else ""
        try:
            for key, upload in list(self._parts(bucket, prefix)):
                if not ours(key.removeprefix(prefix)):
                    continue
                with contextlib.suppress(FileNotFoundError):  # its writer lives, and has finished it
                    self._files.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)
                self._moved = time.monotonic()
        except PermissionError:
            pass
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise

    def _parts(self, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
        """Key and id of uploads that are begun and not ended; a thousand come at a time.

        The next ones are asked for by key alone, which every store understands: of a key with uploads on two pages the next
        look finds the rest.
        """
        after: dict[str, str] = {}
        while True:
            found = self._files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
            self._moved = time.monotonic()
            yield from ((one["Key"], one["UploadId"]) for one in found.get("Uploads") or ())
            following = found.get("NextKeyMarker")
            if not found.get("IsTruncated") or following in (None, "", after.get("KeyMarker")):
                return
            after = {"KeyMarker": following}

    def download(self, name: str, target: Path) -> None:
        """Copy a file from there, which appears whole or not at all. Raises FileNotFoundError when there is none."""
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f".{target.name}.half")
        try:
            with _sound(name):
                self._files.get_file(self._path(name), str(half), callback=self._callback())
            os.replace(half, target)
        except BaseException:
            half.unlink(missing_ok=True)
            raise

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; one that is not there is as good as deleted."""
        self._files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)
        self._moved = time.monotonic()

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """File system and path there, opened on first use: what is wrong with it is said by `within`."""
        return filesystem_of(self.uri)

    @property
    def _files(self) -> Any:
        return self._place[0]

    def _path(self, name: str) -> str:
        return f"{self._place[1]}/{name}"

    def _make_parent(self, name: str) -> None:
        # In an object store folders are part of names, and what s3fs would make is the bucket.
        if not is_s3(self.uri):
            self._files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)

    def _callback(self) -> Any:
        from fsspec.callbacks import Callback

        def moved(*_: object, **__: object) -> None:
            self._moved = time.monotonic()

        return Callback(hooks={"moved": moved})


class RemoteWriter:
    """A file in a folder there that is written piece by piece: whole from `finish` on, and before not there at all.

    To be called within `RemoteFolder.within`, as the folder's own methods are.
    """

    def __init__(self, folder: RemoteFolder, name: str, size: int) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._part, self._filled = max(_PIECE, -(-size // _MOST_PARTS)), 0
        self._file: Any = folder._files.open(folder._path(name), "wb", block_size=self._part)

    def write(self, data: Any) -> None:
        """The next bytes, or a contiguous array of them."""
        view = memoryview(data)
        while len(view):
            # A part is sent with what it holds once it is full, and some stores take parts of one size only.
            piece = view[: self._part - self._filled]
            self._file.write(piece)
            self._filled = (self._filled + len(piece)) % self._part
            view = view[len(piece) :]
            self._folder._moved = time.monotonic()

    def finish(self) -> None:
        """There are no more: it is there when its size was read back."""
        self._file.close()
        if (found := self._folder.size(self._name)) != self._size:
            raise OSError(f"{self._name} arrived with {found:,} bytes instead of {self._size:,}")
        self._folder._moved = time.monotonic()

    def abort(self) -> None:
        """Nobody writes the rest: what is there of it is deleted."""
        if self._file.closed:
            return
        if is_s3(self._folder.uri):
            try:
                with contextlib.suppress(FileNotFoundError):  # another has forgotten its parts
                    self._file.discard()
            finally:
                self._file.closed = True  # or it would be finished when its memory is freed
        else:
            self._file.close()
            self._folder.delete(self._name)
