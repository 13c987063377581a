"""The rows that are asked: JSONL and parquet files on a disk or in an object store, cut into parts."""

from __future__ import annotations

import array
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rl_api.errors import InvalidConfig
from rl_generate.encoding import (
    NOT_ARROW,
    Format,
    Rows,
    infer_schema,
    is_blank,
    lines_of,
    pack,
    read_lines,
    unified,
    unpack,
)
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import advice, filesystem_of

_KINDS: Final[dict[str, Format]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# Every so many rows the place of a line is kept.
_MARK = 64
_PIECE = 8 << 20


class Slice(NamedTuple):
    """`rows` rows of a file from row `first` on (from 0)."""

    file: int
    first: int
    rows: int


class Content(NamedTuple):
    """What a slice holds: lines of JSON, or a packed table. `file`: its name; `first`: number of the first row in it."""

    kind: Format
    file: str
    first: int
    content: bytes


@dataclass(frozen=True)
class Part:
    """Rows that are answered and written together: `first` is the number of the first one among all."""

    number: int
    first: int
    rows: int
    slices: tuple[Slice, ...]


@dataclass
class File:
    """One file: its name for people, path, what changes when it does, rows; of JSONL the offsets of every `_MARK`-th row,
    and the end.
    """

    name: str
    path: str
    stamp: tuple[object, ...]
    digest: str = ""
    rows: int = 0
    marks: array.array[int] | None = None
    schema: Any = None


class Source:
    """All files that `address` names; get it from `open_source`.

    Attributes:
        kind: of the files.
        files: in the order of their names.
        rows: of all of them.
        fingerprint: digest of their contents, in this order.
    """

    def __init__(self, address: str, filesystem: Any, kind: Format, files: list[File]) -> None:
        self.address, self.kind, self.files = address, kind, files
        self._filesystem = filesystem
        self._group: tuple[int, int, pa.Table] | None = None
        for file in files:
            with self._saying(file):
                self._scan(file)
        self.rows = sum(file.rows for file in files)
        told = "".join(f"{file.rows} {file.digest} " for file in files)
        self.fingerprint = hashlib.sha256(f"{kind}\0{told}".encode()).hexdigest()

    def parts(self, rows: int) -> list[Part]:
        """All rows in their order, `rows` in each part but the last."""
        return cut([file.rows for file in self.files], rows)

    def schema(self) -> pa.Schema:
        """Types of all columns, for parquet. Of JSONL every row is looked at.

        Raises:
            InvalidConfig: a column holds values of several types.
        """
        try:
            if self.kind == "parquet":
                return unified([file.schema for file in self.files])
            return unified([infer_schema(rows.rows) for rows in self._batches()])
        except NOT_ARROW as error:
            raise InvalidConfig(
                f"--input {self.address}: its columns do not fit parquet ({reason(error)}); take --format jsonl"
                if self.kind == "jsonl"
                else f"--input {self.address}: its files do not go together ({reason(error)}); generate each by itself"
            ) from None

    def columns(self) -> list[str]:
        """Columns of the first row that can be read."""
        if self.kind == "parquet":
            return list(self.files[0].schema.names)
        return next((list(row) for rows in self._batches() for row in rows.rows if row), [])

    def _batches(self) -> Iterator[Rows]:
        for part in self.parts(1024):
            yield rows_of(self.read(part))

    def read(self, part: Part) -> list[Content]:
        """The part's rows; `rows_of` makes rows of it.

        Raises:
            InvalidConfig: a file cannot be read, or is no longer as it was.
        """
        found = []
        for one in part.slices:
            file = self.files[one.file]
            with self._saying(file):
                found.append(Content(self.kind, file.name, one.first, self._slice(one)))
        return found

    def _scan(self, file: File) -> None:
        """Count the rows, and digest what there is."""
        digest = hashlib.sha256()
        with self._filesystem.open(file.path, "rb") as opened:
            if self.kind == "parquet":
                while piece := opened.read(_PIECE):
                    digest.update(piece)
                opened.seek(0)
                found = pq.ParquetFile(opened)
                file.rows, file.schema = found.metadata.num_rows, found.schema_arrow
            else:
                file.marks, place = array.array("Q"), 0
                for line in _lines(opened):
                    digest.update(line)
                    if not is_blank(line):
                        if file.rows % _MARK == 0:
                            file.marks.append(place)
                        file.rows += 1
                    place += len(line)
                file.marks.append(place)
        file.digest = digest.hexdigest()

    def _slice(self, one: Slice) -> bytes:
        file = self.files[one.file]
        self._filesystem.invalidate_cache(file.path)
        if _stamp(self._filesystem.info(file.path)) != file.stamp:
            raise InvalidConfig(
                f"--input {file.name}: the file has changed since the job began; start it again"
            )
        if self.kind == "jsonl":
            assert file.marks is not None
            begin, end = one.first // _MARK, -(-(one.first + one.rows) // _MARK)
            content = self._filesystem.cat_file(
                file.path, start=file.marks[begin], end=file.marks[min(end, len(file.marks) - 1)]
            )
            skipped = one.first - begin * _MARK
            return b"\n".join(lines_of(content)[skipped : skipped + one.rows])
        tables, left, start = [], one.rows, one.first
        with self._filesystem.open(file.path, "rb") as opened:
            found, at = pq.ParquetFile(opened), 0
            for group in range(found.num_row_groups):
                size = found.metadata.row_group(group).num_rows
                if left and at <= start < at + size:
                    taken = min(left, at + size - start)
                    tables.append(self._row_group(one.file, group, found).slice(start - at, taken))
                    start, left = start + taken, left - taken
                at += size
        return pack(pa.concat_tables(tables))

    def _row_group(self, file: int, group: int, found: pq.ParquetFile) -> pa.Table:
        """The last one is kept: parts are read one after another, and several lie in one group."""
        if self._group is None or self._group[:2] != (file, group):
            self._group = (file, group, found.read_row_group(group))
        return self._group[2]

    @contextlib.contextmanager
    def _saying(self, file: File) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, ImportError) as error:
            more = f". {advice(self.address)}" if "://" in self.address else ""
            raise InvalidConfig(f"--input {file.name}: cannot be read ({reason(error)}){more}") from None


def _found(filesystem: Any, root: str, *, folder: bool) -> dict[str, tuple[object, ...]]:
    """Stamps by path of the file at `root`, or of all files in the folder there.

    Rights to read a file (s3:GetObject) come without those to list (s3:ListBucket), so what is named as a file is first
    asked for as one. What a console or a tool puts in S3 for a folder is an empty object whose name ends with a slash.
    """
    refused = None
    if not folder and PurePosixPath(root).suffix in _KINDS:
        try:
            entry = filesystem.info(root)
            if entry["type"] == "file":
                return {root: _stamp(entry)}
        except (FileNotFoundError, PermissionError) as error:
            refused = error
    try:
        listed = filesystem.find(root, detail=True)
    except PermissionError as error:
        raise refused or error from None
    return {path: _stamp(entry) for path, entry in listed.items() if not path.endswith("/")}


def _stamp(entry: Mapping[str, Any]) -> tuple[object, ...]:
    """What changes with a file's content, as its file system tells: its size, and the store's digest or a time."""
    names = ("ETag", "mtime", "LastModified", "created")
    return entry["size"], next((entry[name] for name in names if entry.get(name)), None)


def rows_of(contents: Sequence[Content]) -> Rows:
    """The rows of a part, from `Source.read`."""
    found = Rows()
    for one in contents:
        lines = one.kind == "jsonl"
        found.extend(read_lines(lines_of(one.content), one.file, one.first) if lines else unpack(one.content))
    return found


def _lines(opened: Any) -> Iterator[bytes]:
    """Lines with their ends; a file of an object store gives them, too, but slowly."""
    rest = b""
    while piece := opened.read(_PIECE):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def cut(rows: list[int], size: int) -> list[Part]:
    """Parts of `size` rows over files of so many `rows` each; the last part may have fewer. Pure."""
    parts: list[Part] = []
    slices: list[Slice] = []
    total = room = 0
    for file, count in enumerate(rows):
        at = 0
        while at < count:
            room = size - sum(one.rows for one in slices)
            slices.append(Slice(file, at, min(room, count - at)))
            at += slices[-1].rows
            if slices[-1].rows == room:
                parts.append(Part(len(parts), total, size, tuple(slices)))
                total, slices = total + size, []
    if slices:
        parts.append(Part(len(parts), total, sum(one.rows for one in slices), tuple(slices)))
    return parts


def open_source(address: str) -> Source:
    """The files that `address` names: one, or all of a folder and of those in it, without those that begin with . or _.

    Raises:
        InvalidConfig: there is nothing to read, files of several kinds, or one that cannot be read.
    """
    import fsspec  # slow to import, and help does not need it

    if "://" in address:
        try:
            filesystem, root = filesystem_of(address)
        except (ValueError, ImportError) as error:
            raise InvalidConfig(
                f"--input: {reason(error) if isinstance(error, ImportError) else error}"
            ) from None
    else:
        filesystem, root = fsspec.filesystem("file"), str(Path(address).expanduser().resolve())
    try:
        filesystem.invalidate_cache()
        found = _found(filesystem, root, folder=address.endswith("/"))
    except Exception as error:  # botocore has errors of its own
        raise InvalidConfig(
            f"--input {address}: cannot be read ({reason(error)}). {advice(address)}"
        ) from None
    files = []
    for path in sorted(found):
        name = PurePosixPath(path).relative_to(root).as_posix()
        if not any(word.startswith((".", "_")) for word in PurePosixPath(name).parts):
            files.append(File(PurePosixPath(path).name if name == "." else name, path, found[path]))
    allowed = "a .jsonl, .ndjson or .parquet file, or a folder of such files"
    kinds = {_KINDS.get(PurePosixPath(file.path).suffix) for file in files}
    if not files:
        raise InvalidConfig(f"--input {address}: found no file, allowed: {allowed}")
    if None in kinds or len(kinds) > 1:
        odd = next((file.name for file in files if PurePosixPath(file.path).suffix not in _KINDS), "")
        what = odd or "JSONL and parquet together"
        raise InvalidConfig(f"--input {address}: found {what}, allowed: {allowed}, all of one kind")
    (kind,) = kinds
    assert kind is not None
    return Source(address, filesystem, kind, files)
