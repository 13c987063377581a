"""Safetensors files written piece by piece, without all tensors in memory, and without torch, so that the driver can.

The format: the length of the header (8 bytes, little endian), the header (JSON: number format, shape and place of every
tensor), then the tensors one after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_api.errors import CheckpointError
from rl_trainer.error_text import reason
from rl_trainer.storage.files import Closes
from rl_trainer.storage.remote_folder import RemoteFolder, RemoteWriter

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Number format, as safetensors files name it, and shape by name, in the order of the bytes."""
Digests = dict[str, tuple[int, str]]
"""Size in bytes and SHA-256 in hex by the name of a file."""

ROWS = "rows"
"""In a file's metadata: of which tensors it has some rows only, as JSON: name -> [the first, how many the whole has]."""

_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class FileHead:
    """How a file of tensors begins: its name, the bytes before the first tensor, and the size of all of it."""

    name: str
    content: bytes
    size: int


def file_head(name: str, shapes: Shapes, metadata: Mapping[str, str] | None = None) -> FileHead:
    """The head of the file `name`. Raises ValueError when a tensor would not begin at a multiple of its width."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for tensor, (kind, shape) in shapes.items():
        start, end = end, end + _BYTES[kind] * math.prod(shape)
        if start % _BYTES[kind]:
            raise ValueError(
                f"{tensor} ({kind}) begins at byte {start}: tensors of wide numbers must come first"
            )
        header[tensor] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return FileHead(name, len(text).to_bytes(8, "little") + text, 8 + len(text) + end)


class ShardWriter(Closes):
    """Files below `folder` that are written piece by piece, and their checksums with them: nothing is read again for these.

    In an object store they are streamed: of a file one part is in memory, and until it is whole it is not there at all.
    There `check` is called before a file becomes whole; what it raises is raised, and the file is none.

    Raises CheckpointError when one cannot be written, and Unavailable, which is one, of an object store.
    """

    def __init__(
        self,
        folder: Path | RemoteFolder,
        heads: Iterable[FileHead],
        check: Callable[[], None] = lambda: None,
    ):
        self._files: dict[str, _PieceFile | _StreamedFile] = {}
        try:
            for head in heads:
                with _said(head.name):
                    self._files[head.name] = (
                        _PieceFile(folder / head.name, head)
                        if isinstance(folder, Path)
                        else _StreamedFile(folder, head, check)
                    )
        except BaseException:
            self.close()
            raise

    def write(self, name: str, piece: Any) -> None:
        """Adds bytes, or a contiguous array of them, to the file `name`."""
        with _said(name):
            self._files[name].write(piece)

    def finish(self) -> Digests:
        """Size and SHA-256 of every file; all of them are on disk, or in the object store, then."""
        found: Digests = {}
        for name, file in self._files.items():
            with _said(name):
                found[name] = file.finish()
        return found

    def close(self) -> None:
        """Nobody writes the rest."""
        for file in self._files.values():
            file.close()


class _Counted:
    """Size and SHA-256 of what is written of a file."""

    def __init__(self, head: FileHead):
        self._expected, self._size, self._digest = head.size, 0, hashlib.sha256()

    def _count(self, piece: Any) -> None:
        self._size += len(piece)
        self._digest.update(piece)

    def _counted(self) -> tuple[int, str]:
        if self._size != self._expected:
            raise OSError(f"{self._size:,} bytes came instead of {self._expected:,}")
        return self._size, self._digest.hexdigest()


class _PieceFile(_Counted):
    def __init__(self, path: Path, head: FileHead):
        super().__init__(head)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self.write(head.content)

    def write(self, piece: Any) -> None:
        self._count(piece)
        self._file.write(piece)

    def finish(self) -> tuple[int, str]:
        found = self._counted()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of bytes that are of no use any more
            self._file.close()


class _StreamedFile(_Counted):
    """A file in an object store, opened with its first bytes and finished with its last: of many, one holds a part."""

    def __init__(self, folder: RemoteFolder, head: FileHead, check: Callable[[], None]):
        super().__init__(head)
        self._folder, self._head, self._check, self._writer = folder, head, check, None
        self._said = f"{head.name} could not be written to {folder.uri}"

    _writer: RemoteWriter | None

    def write(self, piece: Any) -> None:
        first = self._size == 0
        for part in (self._head.content, piece) if first else (piece,):
            self._count(part)
        self._folder.within(self._said, lambda: self._send(piece, first=first))

    def finish(self) -> tuple[int, str]:
        if self._size == 0:  # it holds no tensor
            self.write(b"")
        return self._counted()

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(CheckpointError):  # what is left of it the next attempt sweeps away
                self._folder.within(self._said, self._writer.abort)

    def _send(self, piece: Any, *, first: bool) -> None:
        if self._writer is None:
            self._writer = self._folder.writer(self._head.name, self._head.size)
        if first:
            self._writer.write(self._head.content)
        self._writer.write(piece)
        if self._size == self._expected:
            self._check()
            self._writer.finish()
            self._writer = None


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    """What the system says of the file `name`, as a sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{name}: {reason(error)}") from error
