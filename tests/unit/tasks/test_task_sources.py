"""Prompts from every kind of file and folder, and from data sets; and what is wrong with them in one sentence."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.sources import read_data
from rl_trainer.tasks.split import FiniteSplit, derive_seed
from rl_trainer.tasks.types import Prompt

ROWS = [{"prompt": f"{a}+{b}", "answer": str(a + b), "level": a} for a in range(5) for b in range(5)]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4, **options)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(content)
    return bytes(sink.getvalue())


def jsonl_file(folder: Path) -> str:
    (folder / "a.jsonl").write_bytes(lines(ROWS))
    return "a.jsonl"


def gzip_file(folder: Path) -> str:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines(ROWS)))
    return "a.jsonl.gz"


def zstd_file(folder: Path) -> str:
    (folder / "a.jsonl.zst").write_bytes(zstd(lines(ROWS)))
    return "a.jsonl.zst"


def parquet_file(folder: Path) -> str:
    parquet(folder / "a.parquet", ROWS)
    return "a.parquet"


def folder_of_jsonl(folder: Path) -> str:
    (folder / "shards" / "more").mkdir(parents=True)
    (folder / "shards" / "_SUCCESS").touch()
    (folder / "shards" / ".hidden").touch()
    (folder / "shards" / "a.jsonl").write_bytes(lines(ROWS[:10]))
    (folder / "shards" / "b.ndjson.gz").write_bytes(gzip.compress(lines(ROWS[10:11])))
    (folder / "shards" / "more" / "c.json").write_bytes(lines(ROWS[11:]))
    return "shards"


def folder_of_parquet(folder: Path) -> str:
    for number, start in enumerate(range(0, 25, 9)):
        parquet(folder / "shards" / f"part-{number}.parquet", ROWS[start : start + 9])
    return "shards"


KINDS = [jsonl_file, gzip_file, zstd_file, parquet_file, folder_of_jsonl, folder_of_parquet]


def read(folder: Path, file: str) -> PromptData:
    found = read_data(TaskSpec(environment="prompts", file=file), folder)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_task(tmp_path: Path, kind: Callable[[Path], str]):
    def task(file: str, **more: Any) -> Any:
        spec = {"environment": "prompts", "file": file, "evaluation": {"samples": 5}}
        return load_task(TaskSpec.model_validate(spec), 3, search=tmp_path, **more)

    file = kind(tmp_path)
    found, reference = task(file), task(jsonl_file(tmp_path))
    assert [found.prompt(index) for index in range(60)] == [reference.prompt(index) for index in range(60)]
    assert found.heldout() == reference.heldout()
    # As another process gets it: the rows are not looked at again, and are the very same.
    data = read(tmp_path, file)
    sent = pickle.loads(pickle.dumps(PromptData(data.rows, data.digest, found.split_rows), protocol=5))
    there = task(file, data=sent)
    assert [there.prompt(index) for index in range(60)] == [found.prompt(index) for index in range(60)]
    assert there.heldout() == found.heldout()
    assert [row.fields for row in sent.rows] == [sent.rows[number].fields for number in range(25)] == ROWS


def test_rows_travel_as_blocks_of_memory(tmp_path: Path):
    for kind in (jsonl_file, parquet_file):
        blocks: list[pickle.PickleBuffer] = []
        said = pickle.dumps(read(tmp_path, kind(tmp_path)), protocol=5, buffer_callback=blocks.append)
        assert blocks
        assert b"4+4" not in said


def test_digests(tmp_path: Path):
    """Of one file its own SHA-256, also where it is packed; of a folder's files names and contents, wherever it is."""
    one = read(tmp_path, folder_of_jsonl(tmp_path)).digest
    (tmp_path / "shards").rename(tmp_path / "elsewhere")
    assert read(tmp_path, "elsewhere").digest == one
    (tmp_path / "elsewhere" / "a.jsonl").rename(tmp_path / "elsewhere" / "aa.jsonl")
    assert read(tmp_path, "elsewhere").digest != one


@given(
    st.lists(st.sampled_from([f"q{number}" for number in range(12)]), min_size=2, max_size=60),
    st.integers(0, 2**31),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_which_prompt_comes_when_is_what_it_was(texts: list[str], seed: int, data: Any):
    """A run that is resumed by another version goes on with the same prompts: here the definition in full."""
    heldout = data.draw(st.integers(0, len(set(texts)) - 1))
    prompts = [Prompt(-1, text, str(row), {}) for row, text in enumerate(texts)]
    first = {prompt.text: prompt for prompt in reversed(prompts)}
    ranked = sorted(first, key=lambda text: (derive_seed(seed, "heldout", text), text))
    held = {text: first[text] for text in ranked[:heldout]}
    training = [prompt for prompt in prompts if prompt.text not in held]
    split = FiniteSplit(prompts, seed, heldout, "f")
    assert split.heldout() == list(held.values())
    assert list(split.all_training()) == training
    for epoch in (0, 3):
        order = list(training)
        random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
        assert [split.training(epoch * len(order) + place) for place in range(len(order))] == order


def test_texts_of_the_same_rank_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rl_trainer.tasks.split.derive_seed", lambda *_: 7)
    prompts = [Prompt(-1, text, str(row), {}) for row, text in enumerate("bacab")]
    split = FiniteSplit(prompts, 0, 1, "f")
    assert [prompt.answer for prompt in split.heldout()] == ["1"]
    assert [prompt.answer for prompt in split.all_training()] == ["0", "2", "4"]


def test_what_json_does_not_have(tmp_path: Path):
    rows = [
        {
            "prompt": [{"role": "user", "content": "Hi", "name": None}],
            "answer": 2,
            "day": datetime.date(2026, 1, 2),
            "price": decimal.Decimal("1.5"),
            "took": datetime.timedelta(seconds=2),
            "image": b"\x00",
            "parts": [{"picture": b"\x01", "text": "x"}],
        }
    ]
    parquet(tmp_path / "a.parquet", rows)
    (row,) = read(tmp_path, "a.parquet").rows
    assert row.fields == {
        **{"prompt": rows[0]["prompt"], "answer": 2, "day": "2026-01-02", "price": 1.5, "took": 2.0}
    }
    task = load_task(TaskSpec(environment="prompts", file="a.parquet"), 0, search=tmp_path)
    assert (task.prompt(0).messages, task.prompt(0).answer) == (({"role": "user", "content": "Hi"},), "2")


def test_shards_whose_columns_differ_a_little(tmp_path: Path):
    parquet(tmp_path / "s" / "a.parquet", [{"prompt": "a", "answer": None, "level": np.int32(1)}])
    parquet(tmp_path / "s" / "b.parquet", [{"level": 2.5, "answer": "b", "prompt": "b", "more": "x"}])
    assert [row.fields for row in read(tmp_path, "s").rows] == [
        {"prompt": "a", "answer": None, "level": 1.0, "more": None},
        {"prompt": "b", "answer": "b", "level": 2.5, "more": "x"},
    ]


def categories(*texts: str | None) -> pa.Array:
    return pa.array(texts, pa.string()).dictionary_encode()


def test_categories_of_every_shard_are_its_own(tmp_path: Path):
    """As pandas writes a column of type category, beside a shard that has plain text."""
    columns: list[dict[str, Any]] = [
        {"prompt": categories("a", "b", "a"), "answer": categories("x", None, "x")},
        {"prompt": categories("c", "d", "c"), "answer": ["x", "y", "x"]},
        {"prompt": pa.array(["e", "f", "e"], pa.large_string()), "answer": categories("z", "z", "x")},
    ]
    (tmp_path / "s").mkdir()
    for name, shard in zip("abc", columns, strict=True):
        level = pa.array([1, 2, 1]).dictionary_encode() if name == "a" else [0.5, 1.5, 2.5]
        parts = pa.StructArray.from_arrays([categories(*name * 3)], ["text"])
        tags = pa.ListArray.from_arrays([0, 1, 2, 3], categories(*name * 3))
        picture = pa.array([b"x"] * 3).dictionary_encode()
        table = {**shard, "level": level, "parts": parts, "tags": tags, "picture": picture}
        pq.write_table(pa.table(table), tmp_path / "s" / f"{name}.parquet")
    rows = [row.fields for row in read(tmp_path, "s").rows]
    assert [row["prompt"] for row in rows] == list("abacdcefe")
    assert [row["answer"] for row in rows] == ["x", None, *"xxyxzzx"]
    assert [row["level"] for row in rows] == [1, 2, 1, *[0.5, 1.5, 2.5] * 2]
    assert [(row["parts"], row["tags"]) for row in rows] == [({"text": name}, [name]) for name in "aaabbbccc"]
    assert not any("picture" in row for row in rows)


def test_columns_that_no_arrow_file_holds_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rl_trainer.tasks.arrow_rows._decoded", lambda kind: kind)
    for name in "ab":
        (tmp_path / "s").mkdir(exist_ok=True)
        pq.write_table(pa.table({"prompt": categories(name)}), tmp_path / "s" / f"{name}.parquet")
    with pytest.raises(
        TaskError,
        match=r"task: the unpacked prompts cannot be written as one Arrow file: ArrowInvalid: Dictionary",
    ):
        read(tmp_path, "s")


def broken_parquet(folder: Path) -> None:
    parquet(folder / "s" / "a.parquet", ROWS, compression="zstd")
    content = bytearray((folder / "s" / "a.parquet").read_bytes())
    content[4:200] = bytes(196)
    (folder / "s" / "b.parquet").write_bytes(content)


WRONG: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "s",
        lambda f: (f / "s").mkdir(),
        r"task.file: s holds no file, allowed: files that end with .jsonl, .*, or with .parquet",
    ),
    (
        "s",
        lambda f: (
            jsonl_file(f),
            parquet(f / "s" / "a.parquet", ROWS),
            (f / "s" / "b.jsonl").write_bytes(b"{}"),
        ),
        r"task.file: s holds parquet \(a.parquet\) and JSONL \(b.jsonl\), allowed: files of one kind",
    ),
    (
        "s",
        lambda f: ((f / "s").mkdir(), (f / "s" / "a.csv").touch()),
        r"task.file: s holds a.csv, allowed: files that end",
    ),
    (
        "a.parquet",
        lambda f: (f / "a.parquet").write_bytes(b"PAR1"),
        r"task.file: a.parquet is no parquet file that can be read: ",
    ),
    (
        "a.parquet",
        lambda f: (f / "a.parquet").touch(),
        r"task.file: a.parquet is no parquet file that can be read: ",
    ),
    ("s", broken_parquet, r"task.file: s/b.parquet is no parquet file that can be read: "),
    (
        "a.jsonl.gz",
        lambda f: (f / "a.jsonl.gz").write_bytes(gzip.compress(lines(ROWS))[:-9]),
        r"task.file: a.jsonl.gz is no .gz file that can be unpacked: ",
    ),
    (
        "a.jsonl.gz",
        lambda f: (f / "a.jsonl.gz").write_bytes(lines(ROWS)),
        r"a.jsonl.gz is no .gz file .*Not a gzipped file",
    ),
    (
        "a.jsonl.zst",
        lambda f: (f / "a.jsonl.zst").write_bytes(lines(ROWS)),
        r"a.jsonl.zst is no .zst file that can be unpacked: ",
    ),
    (
        "a.jsonl.zst",
        lambda f: (f / "a.jsonl.zst").write_bytes(zstd(lines(ROWS))[:-20]),
        r"a.jsonl.zst is no .zst file",
    ),
    (
        "s",
        lambda f: (
            (f / "s").mkdir(),
            (f / "s" / "a.jsonl").write_bytes(lines(ROWS)),
            (f / "s" / "b.jsonl").write_bytes(b'{"prompt": 1}'),
        ),
        r"s/b.jsonl:1: field 'prompt' is 1, allowed: text",
    ),
    (
        "a.parquet",
        lambda f: parquet(f / "a.parquet", [{"question": "a"}]),
        r"a.parquet, row 1: there is no field 'prompt' \(task.promptField\), the row has: question",
    ),
    (
        "a.parquet",
        lambda f: parquet(f / "a.parquet", [*ROWS, {"prompt": "x", "answer": None}]),
        r"a.parquet, row 26: field 'answer' is empty, allowed: text or a number",
    ),
    (
        "s",
        lambda f: (
            parquet(f / "s" / "a.parquet", ROWS),
            parquet(f / "s" / "b.parquet", [{"prompt": 5, "answer": "b"}]),
        ),
        r"task.file: s/b.parquet, column 'prompt': found int64, allowed: string, as in s/a.parquet",
    ),
    (
        "s",
        lambda f: (
            parquet(f / "s" / "a.parquet", ROWS),
            pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), f / "s" / "b.parquet"),
        ),
        r"task.file: s/b.parquet has no row, allowed: one prompt per row",
    ),
]


@pytest.mark.parametrize(("file", "make", "message"), WRONG)
def test_errors_name_file_row_and_field(
    tmp_path: Path, file: str, make: Callable[[Path], object], message: str
):
    make(tmp_path)
    spec = {"environment": "prompts", "file": file, "evaluation": {"samples": 1}}
    with pytest.raises(TaskError, match=message):
        load_task(TaskSpec.model_validate(spec), 0, search=tmp_path)


def test_no_room_for_what_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        TaskError, match=r"the unpacked prompts cannot be kept in .*/gone: No such file.*; make room there"
    ):
        read(tmp_path, parquet_file(tmp_path))


def test_a_folder_at_an_address(tmp_path: Path, any_scheme: None):
    folder_of_parquet(tmp_path)
    here, there = read(tmp_path, "shards"), read(tmp_path, f"file://{tmp_path}/shards")
    assert there.digest == here.digest
    assert [row.fields for row in there.rows] == ROWS
    assert there.rows[10].where == f"file://{tmp_path}/shards/part-1.parquet, row 2"


def test_items_of_environments_come_from_rows(tmp_path: Path):
    (tmp_path / "world_of_rows.py").write_text(
        "from rl_trainer.tasks import StepResult\n"
        "class World:\n"
        "    def __init__(self, item, args): self.item = item\n"
        "    def reset(self): return self.item['map']\n"
        "    def step(self, completion): return StepResult(done=True)\n"
    )
    parquet(tmp_path / "a.parquet", [{"map": "a"}, {"map": "b"}])
    spec = {
        "environment": "tool-use",
        "name": "world_of_rows:World",
        "file": "a.parquet",
        "rewards": [{"rule": "task"}],
    }
    task = load_task(TaskSpec.model_validate(spec), 0, search=tmp_path)
    assert {task.prompt(0).text, task.prompt(1).text} == {"a", "b"}
