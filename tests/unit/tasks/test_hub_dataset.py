"""`task.dataset`, on this disk: the hub is never asked."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from rl_api.errors import TaskError
from rl_api.task import DatasetSpec, TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.rows import PromptData
from rl_trainer.tasks.sources import read_data

ROWS = [{"question": f"{a}+1", "answer": str(a + 1), "picture": b"x"} for a in range(20)]
FIELDS = [{"question": row["question"], "answer": row["answer"]} for row in ROWS]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def spec(name: str, **fields: Any) -> TaskSpec:
    dataset = DatasetSpec(name=name, **fields)
    return TaskSpec(environment="prompts", dataset=dataset, prompt_field="question")


def read(folder: Path, name: str, **fields: Any) -> PromptData:
    found = read_data(spec(name, **fields), folder)
    assert found is not None
    return found


def as_files(folder: Path) -> None:
    """As the hub has them: a file per split."""
    found = datasets.Dataset.from_list(ROWS)
    found.select(range(15)).to_parquet(folder / "numbers" / "train.parquet")
    found.select(range(15, 20)).to_parquet(folder / "numbers" / "test.parquet")


def test_a_folder_of_files_and_one_that_was_saved_have_the_same_rows(tmp_path: Path):
    as_files(tmp_path)
    files = read(tmp_path, "numbers")
    assert [row.fields for row in files.rows] == FIELDS[:15]
    assert files.rows[3].where == "numbers, row 4"
    datasets.Dataset.from_list(ROWS[:15]).save_to_disk(tmp_path / "saved")
    saved = read(tmp_path, "saved")
    assert [row.fields for row in saved.rows] == FIELDS[:15]
    assert saved.digest == files.digest
    assert read(tmp_path, "numbers", split="test").digest != files.digest
    assert [row.fields for row in read(tmp_path, "numbers", split="train[:2]").rows] == FIELDS[:2]
    task = load_task(spec("numbers"), 0, search=tmp_path)
    assert {task.prompt(index).text for index in range(15)} == {row["question"] for row in FIELDS[:15]}


def test_rows_in_another_order_than_they_are_kept_in(tmp_path: Path):
    both = {
        "train": datasets.Dataset.from_list(ROWS),
        "test": datasets.Dataset.from_list(ROWS).select([3, 1]),
    }
    datasets.DatasetDict(both).save_to_disk(tmp_path / "saved")
    assert [row.fields for row in read(tmp_path, "saved", split="test").rows] == [FIELDS[3], FIELDS[1]]
    with pytest.raises(TaskError, match=r"task.dataset.split: found 'other', allowed: test, train"):
        read(tmp_path, "saved", split="other")


def one_saved(folder: Path, name: str | None) -> None:
    datasets.Dataset.from_list(ROWS, split=name).save_to_disk(folder / "saved")


def several_saved(folder: Path, name: str | None) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, name or "test": rows}).save_to_disk(folder / "saved")


@pytest.mark.parametrize(
    ("save", "name"),
    [(one_saved, None), (one_saved, "test"), (several_saved, "test"), (several_saved, "x-y")],
)
def test_parts_of_what_was_saved(tmp_path: Path, save: Any, name: str | None):
    save(tmp_path, name)

    def rows(split: str) -> list[dict[str, Any]]:
        return [row.fields for row in read(tmp_path, "saved", split=split).rows]

    assert rows("train") == rows(name or "train") == FIELDS
    assert rows("train[:3]") == FIELDS[:3]
    assert rows("train[-10%:]") == FIELDS[-2:]
    assert rows("train[:2]+train[4:5]") == [*FIELDS[:2], FIELDS[4]]
    if name == "test":
        assert rows("test[5:6]") == FIELDS[5:6]
    names = ", ".join(sorted({"train", name or "train"}))
    for split in ("nonsense", "nonsense[:3]", "train[:3", "train[:300%]", "train[:3](up)"):
        allowed = (
            f"found {split!r}, allowed: {names}, or a part of one by rows or percent, such as train[:1000]"
        )
        with pytest.raises(TaskError, match=re.escape(f"task.dataset.split: {allowed}")):
            rows(split)
    for split in ("train[:0]", "train[5:3]"):
        with pytest.raises(
            TaskError, match=re.escape(f"task.dataset.split: {split!r} has no row, allowed: one")
        ):
            rows(split)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"split": "validation"},
            r"task.dataset: numbers cannot be loaded: .*validation.*\. Look at config and split",
        ),
        ({"config": "main"}, r"task.dataset: numbers cannot be loaded: .*main.*\. Look at config and split"),
    ],
)
def test_what_a_folder_does_not_have(tmp_path: Path, fields: dict[str, Any], message: str):
    as_files(tmp_path)
    with pytest.raises(TaskError, match=message):
        read(tmp_path, "numbers", **fields)


def test_a_row_that_cannot_be_used(tmp_path: Path):
    datasets.Dataset.from_list([*ROWS, {"question": " ", "answer": "2"}]).save_to_disk(tmp_path / "saved")
    with pytest.raises(TaskError, match=r"saved, row 21: field 'question' is empty, allowed: text"):
        load_task(spec("saved"), 0, search=tmp_path)
    with pytest.raises(
        TaskError,
        match=r"saved, row 1: there is no field 'prompt' \(task.promptField\), the row has: question",
    ):
        load_task(spec("saved").model_copy(update={"prompt_field": "prompt"}), 0, search=tmp_path)


def test_no_row(tmp_path: Path):
    as_files(tmp_path)
    with pytest.raises(TaskError, match=r"task.dataset: numbers cannot be loaded: .*no data"):
        read(tmp_path, "numbers", split="train[:0]")


def test_the_hub_is_asked_for_exactly_this_and_may_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[Any, ...]] = []

    def load(*args: Any, **named: Any) -> None:
        asked.append((*args, named))
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    message = (
        r"openai/gsm8k cannot be loaded: Couldn't reach .* Look at name, config and split, and at the network"
    )
    with pytest.raises(TaskError, match=message):
        read(tmp_path, "openai/gsm8k", config="main", split="test", revision="v1")
    assert asked == [("openai/gsm8k", "main", {"split": "test", "revision": "v1"})]


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rl_trainer.tasks.hub_dataset", None)
    with pytest.raises(
        TaskError, match=r"task.dataset needs a package that is not installed: .*; install rltrain\[trainer\]"
    ):
        read(tmp_path, "numbers")
