"""Parts of input and output: every row is in exactly one, and comes back as it was."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import InvalidConfig, RLTrainError, RunFolderBusy
from rl_generate.encoding import count, encode, infer_schema, read_lines
from rl_generate.job import Options, manifest
from rl_generate.output import MANIFEST, begin, done_parts, name_of, open_folder
from rl_generate.rows import Answer, Columns, Outcome, added
from rl_generate.source import Source, cut, open_source, rows_of

COLUMNS = Columns()


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 30))
def test_every_row_is_in_one_part(rows: list[int], size: int) -> None:
    parts = cut(rows, size)
    seen = [
        (one.file, row)
        for part in parts
        for one in part.slices
        for row in range(one.first, one.first + one.rows)
    ]
    assert seen == [(file, row) for file, count in enumerate(rows) for row in range(count)]
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [part.first for part in parts] == [size * number for number in range(len(parts))]
    assert all(part.rows == sum(one.rows for one in part.slices) for part in parts)
    assert all(part.rows == size for part in parts[:-1])


def all_rows(source: Source, size: int) -> list[dict[str, Any] | None]:
    return [row for part in source.parts(size) for row in rows_of(source.read(part)).rows]


@pytest.mark.parametrize("size", [1, 7, 64, 100, 1000])
def test_lines_are_read_in_parts_of_any_size(tmp_path: Path, size: int) -> None:
    rows = [{"prompt": "é" * (number % 9), "id": number} for number in range(300)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines[:131]) + "\r\n  \n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.ndjson").write_text("\n".join(lines[131:]))  # without an end of its last line
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "_summary.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.txt").write_text("x")
    source = open_source(str(tmp_path))
    assert source.rows == 300
    assert [file.name for file in source.files] == ["a.jsonl", "empty.jsonl", "inner/b.ndjson"]
    assert source.columns() == ["prompt", "id"]
    assert all_rows(source, size) == rows


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_tables_are_read_in_parts_of_any_size(tmp_path: Path, size: int) -> None:
    when = datetime.datetime(2024, 2, 29, 1, 2, 3)
    rows = [
        {"prompt": str(number), "id": number, "when": when, "list": [number, None]} for number in range(120)
    ]
    pq.write_table(pa.Table.from_pylist(rows[:70]), tmp_path / "a.parquet", row_group_size=16)
    pq.write_table(pa.Table.from_pylist(rows[70:]), tmp_path / "b.parquet")
    source = open_source(str(tmp_path))
    assert source.rows == 120
    assert all_rows(source, size) == rows


def test_lines_that_are_none_become_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    source = open_source(str(tmp_path / "a.jsonl"))
    assert (source.rows, source.parts(64), source.columns(), source.schema()) == (0, [], [], pa.schema([]))


def test_fingerprints_are_those_of_the_contents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "c.jsonl").write_text('{"prompt": "y"}\n')
    a, b, c = (open_source(str(tmp_path / name)).fingerprint for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    assert a == b != c


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "x"}\n')
    source, written = open_source(str(file)), file.stat().st_mtime_ns
    assert source.read(source.parts(1)[0])
    file.write_text('{"prompt": "y"}\n')  # as many bytes
    os.utime(file, ns=(written, written + 1_000_000))
    with pytest.raises(InvalidConfig, match=r"--input a.jsonl: the file has changed since the job began"):
        source.read(source.parts(1)[0])
    source = open_source(str(file))
    file.write_text('{"prompt": "xy"}\n')
    with pytest.raises(InvalidConfig, match=r"--input a.jsonl: the file has changed since the job began"):
        source.read(source.parts(1)[0])
    file.unlink()
    with pytest.raises(InvalidConfig, match=r"--input a.jsonl: cannot be read \(No such file"):
        source.read(source.parts(1)[0])


def test_an_object_that_is_replaced_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryFileSystem()
    monkeypatch.setattr("rl_generate.source.filesystem_of", lambda address: (store, "/prompts.jsonl"))
    store.pipe_file("/prompts.jsonl", b'{"prompt": "x"}\n')
    etags = ['"one"']

    def tagged(entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "ETag": etags[-1], "LastModified": len(etags)}

    info = store.info
    monkeypatch.setattr(store, "info", lambda path: tagged(info(path)))
    source = open_source("s3://bucket/prompts.jsonl")
    (part,) = source.parts(64)
    assert source.read(part)
    etags.append('"two"')
    with pytest.raises(InvalidConfig, match="the file has changed since the job began"):
        source.read(part)
    store.rm("/prompts.jsonl")


def test_a_file_in_a_bucket_that_may_not_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryFileSystem()
    monkeypatch.setattr(
        "rl_generate.source.filesystem_of", lambda address: (store, address.removeprefix("s3:/"))
    )
    store.pipe_file("/bucket/prompts.jsonl", b'{"prompt": "x"}\n')

    def find(root: str, *, detail: bool) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(store, "find", find)
    assert open_source("s3://bucket/prompts.jsonl").rows == 1
    for missing in ("other.jsonl", "folder", "folder.jsonl/"):
        with pytest.raises(InvalidConfig, match=f"--input s3://bucket/{missing}: cannot be read"):
            open_source(f"s3://bucket/{missing}")
    monkeypatch.undo()
    store.rm("/bucket", recursive=True)


def test_what_stands_for_a_folder_in_a_bucket_is_no_file_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryFileSystem()
    monkeypatch.setattr("rl_generate.source.filesystem_of", lambda address: (store, "/bucket/folder.jsonl"))
    store.pipe_file("/bucket/folder.jsonl/a.jsonl", b'{"prompt": "x"}\n')
    find = store.find
    monkeypatch.setattr(
        store,
        "find",
        lambda root, detail: {f"{root}/": {"size": 0, "type": "file"}} | find(root, detail=detail),
    )
    assert [file.name for file in open_source("s3://bucket/folder.jsonl").files] == ["a.jsonl"]
    monkeypatch.undo()
    store.rm("/bucket", recursive=True)


def test_a_lock_whose_file_was_removed_holds_nobody_off_and_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_folder(str(tmp_path))
    flock, opened = fcntl.flock, 0

    def as_the_first_one_ends(lock: Any, how: int) -> None:
        nonlocal opened
        opened += 1
        if opened == 1:
            first.close()  # between our opening of its file and our lock on it
        flock(lock, how)

    monkeypatch.setattr("fcntl.flock", as_the_first_one_ends)
    second = open_folder(str(tmp_path))
    assert opened == 2
    with pytest.raises(RunFolderBusy):
        open_folder(str(tmp_path))
    second.close()
    open_folder(str(tmp_path)).close()


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["x"], "a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["x"], "a": ["b"]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidConfig, match="its files do not go together"):
        open_source(str(tmp_path)).schema()
    (tmp_path / "c.jsonl").write_text("{}")
    with pytest.raises(InvalidConfig, match="found JSONL and parquet together"):
        open_source(str(tmp_path))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.parquet").write_bytes(b"x")
    with pytest.raises(InvalidConfig, match=r"--input a.parquet: cannot be read"):
        open_source(str(tmp_path / "broken"))


def test_lines_that_are_no_rows_have_a_sentence() -> None:
    found = read_lines([b'{"a": 1}', b"[1]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000], "x.jsonl", 10)
    assert found.rows == [{"a": 1}, None, None, None, None, None]
    assert sorted(found.problems) == [1, 2, 3, 4, 5]
    assert found.problems[1] == "row 12 of x.jsonl cannot be read: found [1], allowed: a JSON object"
    assert found.problems[4] == "row 15 of x.jsonl cannot be read: NaN is no JSON"


OUTCOMES = [
    Outcome((Answer("é", "stop", 2),), 4),
    Outcome(error="no"),
    Outcome((Answer("", "length", 0),), 1),
]


def test_a_part_of_lines_holds_each_row_as_it_was() -> None:
    rows = read_lines([b'{"a": [1, {"b": null}], "c": "\\ud800"}', b"{", b'{"a": 1e400}'], "x.jsonl", 0)
    content = encode(rows, added(OUTCOMES, COLUMNS, 1), COLUMNS, "jsonl", None, 1)
    first, second, third = (json.loads(line) for line in content.splitlines())
    assert first == {
        "a": [1, {"b": None}],
        "c": "\ud800",
        "completion": "é",
        "finish_reason": "stop",
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "error": None,
    }
    assert second == dict.fromkeys(COLUMNS.added[:-1]) | {"error": "no"}
    assert third["a"] is None
    assert count(content, COLUMNS, "jsonl") == (3, 1)
    assert count(content[:-20], COLUMNS, "jsonl") is None


def test_a_part_of_parquet_holds_each_row_as_it_was(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b", "c"], "x": pa.array([1, None, 3], pa.int16())})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source(str(tmp_path / "a.parquet"))
    rows = rows_of(source.read(source.parts(9)[0]))
    content = encode(rows, added(OUTCOMES, COLUMNS, 1), COLUMNS, "parquet", source.schema(), 1)
    found = pq.read_table(pa.BufferReader(content))
    assert found.select(["prompt", "x"]).equals(table)
    assert found.column("completion").to_pylist() == ["é", None, ""]
    assert found.schema.field("completion_tokens").type == pa.int64()
    assert count(content, COLUMNS, "parquet") == (3, 1)
    assert count(content[:-9], COLUMNS, "parquet") is None
    nothing = encode(
        rows, added([Outcome(error="no")] * 3, COLUMNS, 2), COLUMNS, "parquet", source.schema(), 2
    )
    # The types are those of other parts, also where nothing tells them.
    assert pq.read_schema(pa.BufferReader(nothing)).field("completion").type == pa.list_(pa.string())


def test_lines_become_parquet_with_the_types_of_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "a", "x": 1}\nbad\n' + '{"prompt": "b", "x": 1.5, "y": ["z"]}\n'
    )
    source = open_source(str(tmp_path / "a.jsonl"))
    schema = source.schema()
    assert schema.field("x").type == pa.float64()
    rows = rows_of(source.read(source.parts(3)[0]))
    found = pq.read_table(
        pa.BufferReader(encode(rows, added(OUTCOMES, COLUMNS, 1), COLUMNS, "parquet", schema, 1))
    )
    assert found.column("x").to_pylist() == [1.0, None, 1.5]
    assert found.column("y").to_pylist() == [None, None, ["z"]]
    assert infer_schema([None, {}]) == pa.schema([])


def test_an_output_is_begun_once_and_gone_on_with(tmp_path: Path) -> None:
    wanted = manifest(Options(), input="ab", rows=5, model="m", format="jsonl", part_rows=2)
    parts = cut([5], 2)
    folder = open_folder(str(tmp_path / "a" / "out"))
    assert begin(folder, "out", wanted) is False
    assert done_parts(folder, parts, COLUMNS, "jsonl") == {}
    line = b'{"error": null}\n'
    folder.write(name_of(0, "jsonl"), line + b'{"error": "no"}\n')
    folder.write(name_of(1, "jsonl"), line)  # a row is missing
    folder.write(name_of(2, "jsonl"), line)
    with pytest.raises(RunFolderBusy, match="another rltrain generate is writing there"):
        open_folder(str(tmp_path / "a" / "out"))
    (tmp_path / "a" / "out" / ".part-000001.jsonl.tmp").write_text("half")
    folder.close()
    again = open_folder(str(tmp_path / "a" / "out"))
    assert again.names() == [MANIFEST, "part-000000.jsonl", "part-000001.jsonl", "part-000002.jsonl"]
    assert begin(again, "out", wanted) is True
    assert done_parts(again, parts, COLUMNS, "jsonl") == {0: 1, 2: 0}
    with pytest.raises(
        InvalidConfig, match=r"--output out: holds another job: --n: it was begun with 1, found 2; "
    ):
        begin(again, "out", wanted | {"n": 2})
    again.write(MANIFEST, b"{")
    with pytest.raises(InvalidConfig, match="is no JSON"):
        begin(again, "out", wanted)
    again.close()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="found a file, allowed: a folder"):
        open_folder(str(tmp_path / "file"))
    with pytest.raises(RLTrainError, match="cannot be written"):
        open_folder(str(tmp_path / "file" / "inner"))
    folder = open_folder(str(tmp_path / "out"))
    (tmp_path / "out" / "taken").mkdir()
    with pytest.raises(RLTrainError, match="the same command goes on with what is missing"):
        folder.write("taken", b"x")
    assert sorted(folder.names()) == ["taken"]
    folder.close()
