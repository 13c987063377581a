"""The rows of a file or data set of prompts: each is made into objects when it is asked for, from one block of memory.

What travels to another process travels as these blocks: on one node all processes map the same copy of it.
"""

from __future__ import annotations

import array
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_api.errors import TaskError

_BOM: Final = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One row: where it is, in words (`data.jsonl:3`), and its fields by name."""

    where: str
    fields: dict[str, Any]


class Rows(Protocol):
    """Rows by number, counted from 0 over all files; `unit` is what one is called in a sentence: line or row."""

    @property
    def unit(self) -> str:
        """What a row is called."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row:
        """One row. TaskError when it is broken; the sentence says where it is."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """All rows in their order, which is quicker than one by one."""
        ...


@dataclass(frozen=True)
class SplitRows:
    """Numbers of the rows that are held out, by rank, and of those that are trained on, in the order of the file."""

    held: tuple[int, ...]
    training: NDArray[np.int64]


@dataclass(frozen=True)
class PromptData:
    """What `task.file` or `task.dataset` holds: one process of a run reads it for all.

    Attributes:
        rows: all of them.
        digest: SHA-256 of the file; of several, of their names and digests; of a data set, of its rows.
        split: what is trained on and held out, where a process has found that; None: to be found.
    """

    rows: Rows
    digest: str
    split: SplitRows | None = None


@dataclass(frozen=True)
class JsonRows:
    """Lines of JSON objects in one block; blank lines are none of them. From `json_rows`.

    Attributes:
        names: of the files, for errors.
        content: all files, one behind the other.
        first: of each file the number of its first row.
        places: (rows, 3): where a line begins and ends in `content`, and its number in its file, from 1.
    """

    names: tuple[str, ...]
    content: NDArray[np.uint8]
    first: NDArray[np.int64]
    places: NDArray[np.int64]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Row:
        start, end, line = self.places[number].tolist()
        file = int(np.searchsorted(self.first, number, side="right")) - 1
        where = f"{self.names[file]}:{line}"
        return Row(where, _object(self.content[start:end].tobytes(), where))

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))


def json_rows(files: Sequence[tuple[str, bytes]]) -> JsonRows:
    """The lines of files, each its name and its content. Raises TaskError for a file without any."""
    first: list[int] = []
    places = array.array("q")
    at = 0
    for name, content in files:
        first.append(len(places) // 3)
        number, begin = 0, len(_BOM) * content.startswith(_BOM)
        while begin <= len(content):
            number += 1
            end = content.find(b"\n", begin)
            end = len(content) if end < 0 else end
            if content[begin:end].strip():
                places.extend((at + begin, at + end, number))
            begin = end + 1
        if len(places) == 3 * first[-1]:
            raise TaskError(f"task.file: {name} is empty; it needs one JSON object per line")
        at += len(content)
    # Of one file its bytes are taken as they are, without a copy.
    joined = files[0][1] if len(files) == 1 else b"".join(content for _, content in files)
    return JsonRows(
        tuple(name for name, _ in files),
        np.frombuffer(joined, dtype=np.uint8),
        np.asarray(first, dtype=np.int64),
        np.frombuffer(places, dtype=np.int64).reshape(-1, 3),
    )


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start} of the line)"
        ) from None
    except (json.JSONDecodeError, RecursionError) as error:
        at = f"{error.msg} at character {error.pos + 1}" if isinstance(error, ValueError) else error
        raise TaskError(f"{where}: not a JSON object ({at}): {_shortened(line)}") from None
    if not isinstance(fields, dict):
        raise TaskError(
            f"{where}: found a JSON {_kind(fields)}, allowed: an object such as "
            '{"prompt": "1+1", "answer": "2"}'
        )
    return fields


def _shortened(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _kind(value: Any) -> str:
    return {list: "list", str: "string", int: "number", float: "number", bool: "truth value"}.get(
        type(value), "null"
    )
