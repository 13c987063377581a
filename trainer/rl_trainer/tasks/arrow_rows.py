"""Rows of parquet files and of Hugging Face data sets: Arrow, memory-mapped from a file that is gone when nobody maps it.

A parquet file is compressed by row group, so a single row of it costs a whole group. It is unpacked once, group by group,
and the driver holds none of it in its own memory.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import hashlib
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from rl_api.errors import TaskError
from rl_trainer.error_text import reason
from rl_trainer.tasks.rows import Row

WINDOW: Final = 4096
"""Most rows in a batch."""

Buffer: TypeAlias = bytes | mmap.mmap
"""What a file holds."""

UNREADABLE: Final = (OSError, EOFError, pa.ArrowException)
"""What goes wrong with a file that is damaged, or that cannot be read."""


@dataclass(frozen=True)
class ArrowRows:
    """Rows in batches. Columns of bytes, such as images, are none of their fields; times are texts as ISO 8601 has them.

    Attributes:
        names: of the files, for errors.
        first: of each file the number of its first row.
        batches: of all files, in their order; each is of one file.
    """

    names: tuple[str, ...]
    first: tuple[int, ...]
    batches: tuple[pa.RecordBatch, ...]
    unit: str = "row"

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> Row:
        if not 0 <= number < len(self):
            raise IndexError(number)
        batch = bisect.bisect_right(self._starts, number) - 1
        (fields,) = self.batches[batch].slice(number - self._starts[batch], 1).to_pylist()
        return self._row(number, fields)

    def __iter__(self) -> Iterator[Row]:
        for start, batch in zip(self._starts, self.batches, strict=False):
            for number, fields in enumerate(batch.to_pylist(), start=start):
                yield self._row(number, fields)

    def _row(self, number: int, fields: dict[str, Any]) -> Row:
        file = bisect.bisect_right(self.first, number) - 1
        where = f"{self.names[file]}, row {number - self.first[file] + 1}"
        return Row(where, fields if self._plain else {name: _json(value) for name, value in fields.items()})

    @cached_property
    def _starts(self) -> list[int]:
        """Number of the first row of each batch, and of all rows."""
        starts = [0]
        for batch in self.batches:
            starts.append(starts[-1] + batch.num_rows)
        return starts

    @cached_property
    def _plain(self) -> bool:
        """Whether every value is what JSON has, as it is."""
        return not any(_holds(field.type, _odd) for field in self.batches[0].schema)


def parquet_rows(files: Sequence[tuple[str, Buffer]]) -> ArrowRows:
    """The rows of parquet files, each its name and its content.

    Raises TaskError: one cannot be read, has no row, or its columns are not those of the first.
    """
    opened: list[tuple[str, pq.ParquetFile]] = []
    for name, content in files:
        try:
            opened.append((name, pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))))
        except UNREADABLE as error:
            raise _unreadable(name, error) from None
    schema = _schema([(name, file.schema_arrow) for name, file in opened])
    first: list[int] = []
    rows = 0
    for name, file in opened:
        first.append(rows)
        rows += file.metadata.num_rows
        if rows == first[-1]:
            raise TaskError(f"task.file: {name} has no row, allowed: one prompt per row")

    def batches() -> Iterator[pa.RecordBatch]:
        for name, file in opened:
            try:
                for batch in file.iter_batches(batch_size=WINDOW, columns=schema.names):
                    yield _cast(pa.table(batch), schema, name)
            except UNREADABLE as error:
                raise _unreadable(name, error) from None

    return ArrowRows(tuple(name for name, _ in opened), tuple(first), _mapped(schema, batches()))


def table_rows(name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> tuple[ArrowRows, str]:
    """The rows of a data set, and their SHA-256; each table has at most `WINDOW` rows, and at least one."""
    schema = _schema([(name, schema)])
    digest = hashlib.sha256(schema.to_string(show_schema_metadata=False).encode())

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            batch = _cast(table, schema, name)
            # As columns are written, whatever their offsets in memory are.
            digest.update(batch.serialize())
            yield batch

    mapped = _mapped(schema, batches())
    return ArrowRows((name,), (0,), mapped), digest.hexdigest()


def _cast(table: pa.Table, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """One batch with the columns of all files; a column that this one lacks is empty."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            column = table.column(field.name)
            column = column.cast(_decoded(column.type)).cast(field.type)
        except (pa.ArrowException, ValueError) as error:
            raise TaskError(
                f"task.file: {name}, column {field.name!r}: found {table.schema.field(field.name).type}, allowed: "
                f"{field.type}, as in the other files ({reason(error)})"
            ) from None
        columns.append(column.combine_chunks())
    return pa.record_batch(columns, schema=schema)


def _schema(files: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Columns of all files, but those of bytes. TaskError: one has a column of another type than the first that has it."""
    fields: dict[str, pa.Field] = {}
    owners: dict[str, str] = {}
    for name, schema in files:
        for field in schema:
            kind = _decoded(field.type)
            if _holds(kind, _bytes):
                continue
            field, known = field.remove_metadata().with_nullable(True).with_type(kind), fields.get(field.name)
            if known is None or pa.types.is_null(known.type):
                fields[field.name], owners[field.name] = field, name
            elif field.type != known.type and not pa.types.is_null(field.type):
                try:
                    fields[field.name] = pa.unify_schemas(
                        [pa.schema([known]), pa.schema([field])], promote_options="permissive"
                    ).field(0)
                except pa.ArrowException:
                    raise TaskError(
                        f"task.file: {name}, column {field.name!r}: found {field.type}, allowed: {known.type}, as in "
                        f"{owners[field.name]}"
                    ) from None
    return pa.schema(list(fields.values()))


def _mapped(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[pa.RecordBatch, ...]:
    """The same batches, from a file that only they hold."""
    try:
        with tempfile.NamedTemporaryFile(prefix="rltrain-prompts-") as file:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    _write(writer, batch)
            file.flush()
            reader = pa.ipc.open_file(pa.memory_map(file.name))
            return tuple(reader.get_batch(number) for number in range(reader.num_record_batches))
    except OSError as error:
        raise TaskError(
            f"task: the unpacked prompts cannot be kept in {tempfile.gettempdir()}: {reason(error)}; make room there, or "
            "set TMPDIR"
        ) from None


def _write(writer: pa.ipc.RecordBatchFileWriter, batch: pa.RecordBatch) -> None:
    try:
        writer.write_batch(batch)
    except pa.ArrowException as error:
        raise TaskError(
            f"task: the unpacked prompts cannot be written as one Arrow file: {reason(error)}; allowed: columns of types "
            "that every file can share"
        ) from None


def _unreadable(name: str, error: Exception) -> TaskError:
    return TaskError(f"task.file: {name} is no parquet file that can be read: {reason(error)}")


def _holds(kind: pa.DataType, is_such: Any) -> bool:
    """Whether a type is such, or has a part that is."""
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return bool(is_such(kind)) or any(_holds(part, is_such) for part in parts)


def _decoded(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries (categories) in it: an Arrow file has one per column, and every shard has its own."""
    types = pa.types
    if types.is_dictionary(kind):
        return _decoded(kind.value_type)
    if not _holds(kind, types.is_dictionary):
        return kind
    if types.is_map(kind):
        return pa.map_(_decoded(kind.key_type), _decoded(kind.item_type), kind.keys_sorted)
    parts = [part.with_type(_decoded(part.type)) for part in (kind.field(n) for n in range(kind.num_fields))]
    if types.is_struct(kind):
        return pa.struct(parts)
    if types.is_list(kind):
        return pa.list_(parts[0])
    if types.is_large_list(kind):
        return pa.large_list(parts[0])
    return pa.list_(parts[0], kind.list_size) if types.is_fixed_size_list(kind) else kind


def _bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _odd(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_map(kind))


def _json(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, decimal.Decimal) else value
