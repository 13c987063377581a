"""The checkpoint store: what is kept, what is damaged, what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoints import check, content, names, saved

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.manifest import verify
from rl_trainer.checkpoint.store import CheckpointStore


def test_save_and_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a" / "checkpoints")
    assert store.load_latest() is None
    assert store.list() == ()
    info = store.save(20, content(20), {"cursor": 20})
    assert info.path == tmp_path / "a" / "checkpoints" / "step-00000020"
    assert sum(size for size, _ in info.files.values()) == 3000 + len("rng 20") + len("config 20")
    check(store.load_latest(), 20)
    check(CheckpointStore(store.folder).load_latest(), 20)
    assert names(store.folder) == ["step-00000020"]
    assert store.list() == (info,)


def test_keeps_the_newest(tmp_path: Path) -> None:
    store = saved(tmp_path, [1, 2, 3, 4, 5], keep=2)
    assert [info.step for info in store.list()] == [4, 5]
    assert names(tmp_path) == ["step-00000004", "step-00000005"]
    assert names(saved(tmp_path / "one", [1, 2], keep=1).folder) == ["step-00000002"]


def test_steps_are_numbers_not_names(tmp_path: Path) -> None:
    store = saved(tmp_path, [99_999_999, 100_000_000])
    check(store.load_latest(), 100_000_000)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = saved(tmp_path, [10, 20])
    store.save(20, {"other": b"new"}, {"cursor": "again"})
    latest = store.load_latest()
    assert latest is not None
    assert (latest.step, latest.metadata, list(latest.files)) == (20, {"cursor": "again"}, ["other"])
    assert names(tmp_path) == ["step-00000010", "step-00000020"]


def test_a_save_ends_the_continuation_that_was_given_up(tmp_path: Path) -> None:
    """Resumed from 20, saved at 30: the old 40 and 50 must neither be loaded next time nor push 30 out."""
    store = saved(tmp_path, [10, 20, 40, 50], keep=4)
    store.save(30, content(30), {"cursor": 30})
    assert [info.step for info in store.list()] == [10, 20, 30]


def test_a_damaged_checkpoint_does_not_take_a_good_ones_place(tmp_path: Path) -> None:
    store = saved(tmp_path, [10, 20], keep=2)
    (tmp_path / "step-00000020" / "weights.bin").write_bytes(b"cut")
    store.save(30, content(30), {"cursor": 30})
    assert [info.step for info in store.list()] == [10, 30]


def cut_short(folder: Path) -> None:
    path = folder / "weights.bin"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    path = folder / "weights.bin"
    data = bytearray(path.read_bytes())
    data[1234] ^= 1
    path.write_bytes(bytes(data))


def change_the_metadata(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"cursor": 20', '"cursor": 21'))


def another_format(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    del manifest["sha256"]
    manifest["format"] = 2
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    manifest["sha256"] = hashlib.sha256(canonical).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "weights.bin has 2,999 bytes instead of 3,000"),
        (flip_a_bit, "weights.bin does not match its checksum"),
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda folder: shutil.rmtree(folder / "hf"), "hf/config.json is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_bytes(b""), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff[]"), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"[]"), "manifest.json cannot be read"),
        (change_the_metadata, "manifest.json does not match its checksum"),
        (another_format, "it has format 2, this version of rltrain reads format 1"),
        (
            lambda folder: [
                shutil.rmtree(folder),
                shutil.copytree(folder.with_name("step-00000010"), folder),
            ],
            "its manifest is of step 10",
        ),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    store = saved(tmp_path, [10, 20])
    damage(tmp_path / "step-00000020")
    latest = store.load_latest()
    check(latest, 10)
    assert latest is not None
    assert latest.skipped == (f"The checkpoint of step 20 was skipped: {reason}.",)


def test_when_all_are_damaged_the_user_decides(tmp_path: Path) -> None:
    store = saved(tmp_path, [10, 20])
    cut_short(tmp_path / "step-00000010")
    flip_a_bit(tmp_path / "step-00000020")
    with pytest.raises(
        CheckpointError, match=r"No checkpoint in .* can be used\. .*step 20.*step 10.*Move the folder"
    ):
        store.load_latest()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    latest = saved(tmp_path, [10]).load_latest()
    assert latest is not None
    with pytest.raises(CheckpointError, match=r"step 10 has no file optimizer.pt"):
        latest.file("optimizer.pt")


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-by-step").mkdir()
    store = saved(tmp_path, [1, 2, 3], keep=1)
    assert names(tmp_path) == ["notes.txt", "step-00000003", "step-by-step"]
    check(store.load_latest(), 3)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"The checkpoint folder .*file.* cannot be used"):
        CheckpointStore(tmp_path / "file" / "checkpoints")


def test_a_reader_of_nothing(tmp_path: Path) -> None:
    reader = CheckpointStore(tmp_path / "none", read_only=True)
    assert reader.load_latest() is None
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="read_only"):
        reader.save(1, {})


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../out", "a/../../out"])
def test_paths_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no plain path inside the checkpoint"):
        CheckpointStore(tmp_path).save(1, {name: b""})
    with pytest.raises(ValueError, match=r"'manifest\.json' is that of the manifest\.json itself"):
        CheckpointStore(tmp_path).save(1, {"manifest.json": b""})


def test_misuse_is_named_before_anything_is_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(TypeError):
        store.save(1, {"a": b""}, {"folder": tmp_path})
    with pytest.raises(ValueError, match="step is -1"):
        store.save(-1, {})
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "metadata",
    [{}, {"1": [1.5, None, True], "text": "ü\n", "nested": {"b": 1, "a": 2}}, {"loss": float("inf")}],
)
def test_metadata_comes_back(tmp_path: Path, metadata: Mapping[str, Any]) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {}, metadata)
    assert verify(tmp_path / "step-00000001").metadata == metadata
