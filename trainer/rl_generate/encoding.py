"""Rows as bytes: lines of JSON and Arrow tables in, parts of JSONL or parquet out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rl_api.printable import printable
from rl_generate.rows import Columns, plain
from rl_trainer.storage.files import dump_json

Format = Literal["jsonl", "parquet"]


@dataclass
class Rows:
    """Rows of one part: each a dict, None where it cannot be read, and then the sentence that says why, by its place.

    `table`: the same rows, where they come from parquet.
    """

    rows: list[dict[str, Any] | None] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
    table: pa.Table | None = None

    def extend(self, other: Rows) -> None:
        """Add rows that come after these."""
        self.problems.update({len(self.rows) + place: text for place, text in other.problems.items()})
        self.rows += other.rows
        if other.table is not None:
            tables = [self.table, other.table] if self.table is not None else [other.table]
            self.table = pa.concat_tables(tables, promote_options="permissive")


def lines_of(content: bytes) -> list[bytes]:
    """Lines that hold something; others are no rows."""
    return [line for line in content.split(b"\n") if not is_blank(line)]


def is_blank(line: bytes) -> bool:
    """Whether a line is no row."""
    return not line or line.isspace()


def read_lines(lines: Iterable[bytes], file: str, first: int) -> Rows:
    """Rows from lines of JSON; `file` and the number of its `first` row (from 0) are for sentences."""
    found = Rows()
    for place, line in enumerate(lines):
        try:
            row = json.loads(line.decode("utf-8"), parse_constant=_refuse)
            if not isinstance(row, dict):
                raise ValueError(f"found {printable(json.dumps(row), 60)}, allowed: a JSON object")
            found.rows.append(row)
        except (ValueError, RecursionError) as error:
            found.rows.append(None)
            found.problems[place] = (
                f"row {first + place + 1} of {file} cannot be read: {printable(error, 200)}"
            )
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def pack(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack(content: bytes) -> Rows:
    """Rows from `pack`."""
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    return Rows(table.to_pylist(), {}, table)


def infer_schema(rows: Iterable[Mapping[str, Any] | None]) -> pa.Schema:
    """Types of the columns of rows of JSON. Raises `NOT_ARROW` where a column holds values of several types."""
    found = [row for row in rows if row is not None]
    names = dict.fromkeys(name for row in found for name in row)
    return pa.schema([(name, pa.array([row.get(name) for row in found]).type) for name in names])


NOT_ARROW: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError)
"""What Arrow raises for values that do not fit a column."""


def encode(
    rows: Rows,
    added: Mapping[str, list[Any]],
    columns: Columns,
    format: Format,
    schema: pa.Schema | None,
    n: int,
) -> bytes:
    """A part of the output: all `rows` with the columns that were `added`.

    Args:
        rows: as they were read.
        added: as `rows.added` gives them.
        columns: names.
        format: of the part.
        schema: of the rows' own columns; for parquet.
        n: answers of a row.
    """
    if format == "jsonl":
        return b"".join(
            _line({**plain(row or {}), **dict(zip(added, values, strict=True))})
            for row, values in zip(rows.rows, zip(*added.values(), strict=True), strict=True)
        )
    assert schema is not None
    own = [pa_field for pa_field in schema if pa_field.name not in added]
    if rows.table is not None:
        arrays = {one.name: _column(rows.table, one) for one in own}
    else:
        arrays = {
            one.name: pa.array([row.get(one.name) if row else None for row in rows.rows], one.type)
            for one in own
        }
    types = added_types(columns, n)
    arrays |= {name: pa.array(values, types[name]) for name, values in added.items()}
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue()


def _column(table: pa.Table, one: pa.Field) -> pa.ChunkedArray:
    if one.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, one.type)])
    return table.column(one.name).cast(one.type)


def added_types(columns: Columns, n: int) -> dict[str, pa.DataType]:
    """Types of the added columns in parquet."""
    kinds = (pa.string(), pa.string(), None, pa.int64(), None)
    whole = (None, None, pa.int64(), None, pa.string())
    types = [
        other if kind is None else (pa.list_(kind) if n > 1 else kind)
        for kind, other in zip(kinds, whole, strict=True)
    ]
    return dict(zip(columns.added, types, strict=True))


def _line(row: Mapping[str, Any]) -> bytes:
    text = dump_json(row)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # halves of characters, which JSON can name and UTF-8 cannot hold
        return json.dumps(json.loads(text), separators=(",", ":")).encode() + b"\n"


def count(content: bytes, columns: Columns, format: Format) -> tuple[int, int] | None:
    """Rows of a part, and how many of them have an `error`; None: it is no part of this kind."""
    name = columns.added[-1]
    try:
        if format == "parquet":
            errors = pq.read_table(io.BytesIO(content), columns=[name]).column(name)
            return len(errors), len(errors) - errors.null_count
        found = [json.loads(line) for line in lines_of(content)]
        return len(found), sum(row[name] is not None for row in found)
    except (pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all, of none an empty one. Raises `NOT_ARROW` where a column has types that do not go together."""
    known = [schema.remove_metadata() for schema in schemas] or [pa.schema([])]
    return pa.unify_schemas(known, promote_options="permissive")
