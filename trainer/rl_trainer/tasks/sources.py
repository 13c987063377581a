"""Where prompts are read: files and folders on a disk or in an object store (s3://bucket/file), and data sets."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias, TypeVar

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import advice, filesystem_of
from rl_trainer.tasks.rows import PromptData, json_rows

READ_SECONDS = 300.0
"""Deadline for reading a file from a remote store."""

_Kind = Literal["JSONL", "parquet"]
_ENDINGS: Final[dict[str, _Kind]] = {
    ".jsonl": "JSONL",
    ".ndjson": "JSONL",
    ".json": "JSONL",
    ".parquet": "parquet",
}
_COMPRESSED: Final = (".gz", ".zst")
_ALLOWED: Final = "allowed: files that end with .jsonl, .ndjson or .json (also with .gz or .zst behind it), or with .parquet"

Content: TypeAlias = bytes | mmap.mmap
"""What a file holds."""

Result = TypeVar("Result")


def read_data(spec: TaskSpec, search: Path | None) -> PromptData | None:
    """The rows of the task's file or data set; None: it has neither.

    Args:
        spec: `spec.task`.
        search: folder in which a relative path is looked for first, then in the working directory.

    Raises:
        TaskError: something cannot be read; the sentence names the file, and the row where it is one.
    """
    if spec.dataset is not None:
        try:
            from rl_trainer.tasks.hub_dataset import read_dataset
        except ImportError as error:
            raise TaskError(
                f"task.dataset needs a package that is not installed: {error}; install rltrain[trainer]"
            ) from None
        return read_dataset(spec.dataset, find(spec.dataset.name, search))
    return None if spec.file is None else read_file(spec.file, search)


def read_file(file: str, search: Path | None, field: str = "task.file") -> PromptData:
    """The rows of a file or folder; arguments and errors as `read_data`, which name the field that the user wrote it in."""
    try:
        return _read_remote(file) if "://" in file else _read_local(file, search)
    except TaskError as error:
        # What reads a row knows files alone.
        raise TaskError(str(error).replace("task.file:", f"{field}:", 1)) from error.__cause__


def find(name: str, search: Path | None) -> Path | None:
    """A file or folder at a path; a relative one is looked for in `search`, then in the working directory."""
    candidates = [Path(name)] if search is None or Path(name).is_absolute() else [search / name, Path(name)]
    return next((path for path in candidates if path.exists()), None)


def _read_local(file: str, search: Path | None) -> PromptData:
    path = find(file, search)
    if path is None:
        beside = f", neither beside the run file ({search}) nor in the working directory"
        looked_twice = search is not None and not Path(file).is_absolute()
        raise TaskError(f"task.file: there is no file {file}{beside if looked_twice else ''}")
    if path.is_dir():
        kind, names = _shards(
            file, [one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()]
        )
        folder = file.rstrip("/")
        return _rows(
            kind, {f"{folder}/{name}": name for name in names}, lambda name: _mapped(path / name, name)
        )
    return _rows(_kind(file) or "JSONL", {file: ""}, lambda name: _mapped(path, file))


def _mapped(path: Path, name: str) -> Content:
    try:
        with path.open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0  # which cannot be mapped
            return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TaskError(f"task.file: {name} cannot be read: {error.strerror or error}") from None


def _read_remote(uri: str) -> PromptData:
    files, place = _within(uri, lambda: filesystem_of(uri))
    found = _within(uri, lambda: _at(files, place, uri))
    if isinstance(found, bytes):
        content = found
        return _rows(_kind(uri) or "JSONL", {uri: ""}, lambda _: content)
    kind, names = _shards(uri, found)
    folder = uri.rstrip("/")
    return _rows(
        kind,
        {f"{folder}/{name}": name for name in names},
        lambda name: _within(f"{folder}/{name}", lambda: bytes(files.cat_file(f"{place}/{name}"))),
    )


def _at(files: Any, place: str, uri: str) -> bytes | list[str]:
    """Content of the file at a place in a store, or names of the files of the folder there.

    Rights to read a file (s3:GetObject) come without those to list (s3:ListBucket), so a file is not looked for in a list
    first where its name says what it is.
    """

    def content() -> bytes:
        return bytes(files.cat_file(place))

    if _kind(place.partition("/")[2]) is None or uri.endswith("/"):
        try:
            names = _listed(files, place)
        except PermissionError as refused:
            try:
                return content()
            except FileNotFoundError:
                raise refused from None
        return content() if names is None else names
    try:
        return content()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as missing:
        # Who may not list is told by S3 that what is not there may not be read.
        try:
            names = _listed(files, place)
        except PermissionError:
            raise missing from None
        if names is None:
            raise
        return names


def _listed(files: Any, place: str) -> list[str] | None:
    """Names of the files below a place; None: it is no folder."""
    found: list[str] = files.find(place)
    if found in ([], [place]):
        return None
    # What a console or a tool puts in S3 for a folder is an empty object whose name ends with a slash.
    names = [path.removeprefix(place).lstrip("/") for path in found]
    return [name for name in names if name and not name.endswith("/")]


def _shards(folder: str, names: Sequence[str]) -> tuple[_Kind, list[str]]:
    """Kind and names of a folder's files in their order, but those that begin with . or _, which are not of the data."""
    kept = sorted(
        name for name in names if not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
    )
    if not kept:
        raise TaskError(f"task.file: {folder} holds no file, {_ALLOWED}")
    kinds = {name: _kind(name) for name in kept}
    for name, kind in kinds.items():
        if kind is None:
            raise TaskError(f"task.file: {folder} holds {name}, {_ALLOWED}")
        if kind != kinds[kept[0]]:
            raise TaskError(
                f"task.file: {folder} holds {kinds[kept[0]]} ({kept[0]}) and {kind} ({name}), allowed: files of one kind"
            )
    return kinds[kept[0]] or "JSONL", kept


def _kind(name: str) -> _Kind | None:
    path = PurePosixPath(name)
    return _ENDINGS.get(path.with_suffix("").suffix if path.suffix in _COMPRESSED else path.suffix)


def _rows(kind: _Kind, names: Mapping[str, str], read: Callable[[str], Content]) -> PromptData:
    """The rows of files: `names` are, by what they are called in a sentence, their names in the folder."""
    digests = hashlib.sha256()
    contents: list[tuple[str, Content]] = []
    for shown, name in names.items():
        content = read(name)
        digest = hashlib.sha256(content).hexdigest()
        digests.update(f"{name}\0{digest}\n".encode())
        contents.append((shown, content))
    whole = digests.hexdigest() if any(names.values()) else digest
    if kind == "JSONL":
        return PromptData(json_rows([(name, _plain(name, content)) for name, content in contents]), whole)
    from rl_trainer.tasks.arrow_rows import parquet_rows

    return PromptData(parquet_rows(contents), whole)


def _plain(name: str, content: Content) -> bytes:
    """What a file holds, unpacked if its name says that it is compressed."""
    ending = PurePosixPath(name).suffix
    if ending not in _COMPRESSED:
        return bytes(content)
    try:
        if ending == ".gz":
            return gzip.decompress(content)
        import pyarrow as pa

        return bytes(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(
            f"task.file: {name} is no {ending} file that can be unpacked: {reason(error)}"
        ) from None


def _within(uri: str, work: Callable[[], Result]) -> Result:
    """What `work` finds at `uri`. TaskError when it goes wrong or takes too long."""
    found: Future[Result] = Future()

    def answer() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # raised below
            found.set_exception(error)

    # A thread that waits for a store that never answers is left behind: it holds a connection, not a core.
    threading.Thread(target=answer, name="prompts", daemon=True).start()
    try:
        return found.result(READ_SECONDS)
    except FutureTimeout:
        raise TaskError(
            f"task.file: {uri} was not read after {READ_SECONDS:.0f} s; check the network"
        ) from None
    except ValueError as error:
        raise TaskError(f"task.file: {error}") from None
    except ImportError as error:
        raise TaskError(f"task.file: {uri} needs a package that is not installed: {error}") from None
    except Exception as error:  # every store has its own errors
        why = (str(error) or type(error).__name__).rstrip(".")
        raise TaskError(f"task.file: {uri} cannot be read: {why}. {advice(uri)}") from error
