"""The checkpoint store: whole or not there, whatever is killed, full, cut short or flipped."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint import Checkpoint, CheckpointStore, Writer

KILLED = -signal.SIGKILL


def content(step: int, size: int = 3000) -> dict[str, Writer]:
    """A checkpoint of a file of bytes, a nested one, and a folder that a function writes."""

    def folder(target: Path) -> None:
        (target / "deeper").mkdir(parents=True)
        (target / "config.json").write_text(f"config {step}")
        (target / "deeper" / "empty").touch()

    def text(target: Path) -> None:
        target.write_text(f"rng {step}")

    return {
        "weights.bin": bytes([step % 256]) * size,
        "state/rng.json": text,
        "hf": folder,
    }


def check(checkpoint: Checkpoint | None, step: int) -> None:
    """It is the checkpoint of `step`, in every byte."""
    assert checkpoint is not None
    assert checkpoint.step == step
    assert checkpoint.metadata == {"cursor": step}
    assert sorted(checkpoint.info.files) == [
        "hf/config.json",
        "hf/deeper/empty",
        "state/rng.json",
        "weights.bin",
    ]
    assert set(checkpoint.read("weights.bin")) == {step % 256}
    assert checkpoint.read("state/rng.json") == f"rng {step}".encode()
    assert (checkpoint.file("hf") / "config.json").read_text() == f"config {step}"


def saved(folder: Path, steps: list[int], keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(folder, keep)
    for step in steps:
        store.save(step, content(step), {"cursor": step})
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked process; its exit code, negative for the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_save_and_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a" / "checkpoints")
    assert store.load_latest() is None
    assert store.list() == ()
    info = store.save(20, content(20), {"cursor": 20})
    assert info.path == tmp_path / "a" / "checkpoints" / "step-00000020"
    assert info.size == 3000 + len("rng 20") + len("config 20")
    check(store.load_latest(), 20)
    check(store.load(20), 20)
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
    assert (latest.step, latest.metadata, list(latest.info.files)) == (20, {"cursor": "again"}, ["other"])
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
    with pytest.raises(CheckpointError, match=r"The checkpoint of step 20 in .* is damaged") as error:
        store.load(20)
    assert reason in str(error.value)


def test_when_all_are_damaged_the_user_decides(tmp_path: Path) -> None:
    store = saved(tmp_path, [10, 20])
    cut_short(tmp_path / "step-00000010")
    flip_a_bit(tmp_path / "step-00000020")
    with pytest.raises(
        CheckpointError, match=r"No checkpoint in .* can be used\. .*step 20.*step 10.*Move the folder"
    ):
        store.load_latest()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    store = saved(tmp_path, [10, 20])
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 15 in .*; there are: 10, 20\."):
        store.load(15)
    with pytest.raises(CheckpointError, match=r"step 10 has no file optimizer.pt"):
        store.load(10).file("optimizer.pt")


def fill_the_disk(_: Path) -> None:
    with open("/dev/full", "wb") as stream:  # the device that is always full
        stream.write(b"x")


def raising(error: Exception) -> Callable[[Path], None]:
    def writer(target: Path) -> None:
        target.write_bytes(b"half of it")
        raise error

    return writer


@pytest.mark.parametrize(
    ("writer", "sentence"),
    [
        (fill_the_disk, r"weights.bin: No space left on device \([\d,]+ MB free\)\. .*free some space"),
        (raising(OSError(errno.EDQUOT, "Disk quota exceeded")), "Disk quota exceeded .*free some space"),
        (
            raising(RuntimeError("IoError(Os { code: 28, kind: StorageFull })")),
            "StorageFull.*free some space",
        ),
        (raising(OSError(errno.EIO, "Input/output error")), "Input/output error.*remove the cause"),
        (raising(KeyError("moments")), "KeyError: 'moments'.*remove the cause"),
        (lambda target: None, "its writer wrote nothing"),
        (lambda target: target.symlink_to("/etc/hostname"), "symbolic link"),
    ],
)
def test_a_failed_save_leaves_nothing_and_touches_nothing(
    tmp_path: Path, writer: Writer, sentence: str
) -> None:
    store = saved(tmp_path, [10, 20], keep=2)
    with pytest.raises(CheckpointError, match=sentence) as error:
        store.save(30, {"first": b"fine", "weights.bin": writer}, {"cursor": 30})
    text = str(error.value)
    assert text.startswith(f"The checkpoint of step 30 could not be written to {tmp_path}: ")
    assert "The checkpoint of step 20 is untouched" in text
    assert text.endswith("then resume.")
    assert "\n" not in text
    assert names(tmp_path) == ["step-00000010", "step-00000020"]
    check(store.load_latest(), 20)
    check(store.load(10), 10)
    store.save(30, content(30), {"cursor": 30})  # and the next one works
    check(store.load_latest(), 30)


def test_a_failed_first_save(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is none before it"):
        CheckpointStore(tmp_path).save(1, {"weights.bin": fill_the_disk})
    assert names(tmp_path) == []


def test_a_failed_replacement_keeps_the_old_one(tmp_path: Path) -> None:
    store = saved(tmp_path, [20])
    with pytest.raises(CheckpointError):
        store.save(20, {"weights.bin": fill_the_disk}, {"cursor": "new"})
    check(store.load_latest(), 20)


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    """The system itself cuts the write short: 2,000 bytes of 3,000 fit."""
    store = saved(tmp_path, [10])

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        with pytest.raises(CheckpointError, match=r"weights.bin: File too large .*free some space"):
            store.save(20, content(20), {"cursor": 20})

    assert in_child(limited) == 0
    assert names(tmp_path) == ["step-00000010"]
    check(store.load_latest(), 10)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_being_interrupted_is_no_error_but_leaves_nothing(tmp_path: Path, stop: BaseException) -> None:
    store = saved(tmp_path, [10])

    def writer(target: Path) -> None:
        target.write_bytes(b"half")
        raise stop

    with pytest.raises(type(stop)):
        store.save(20, {"weights.bin": writer})
    assert names(tmp_path) == ["step-00000010"]


def test_killed_inside_a_writer(tmp_path: Path) -> None:
    store = saved(tmp_path, [10])

    def killer(target: Path) -> None:
        target.write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(partial(store.save, 20, {**content(20), "last": killer})) == KILLED
    assert len(names(tmp_path)) == 2  # the finished one and what the killed process left
    check(CheckpointStore(tmp_path, read_only=True).load_latest(), 10)
    assert len(names(tmp_path)) == 2  # readers change nothing
    check(CheckpointStore(tmp_path).load_latest(), 10)
    assert names(tmp_path) == ["step-00000010"]


@pytest.mark.parametrize("step", [30, 20], ids=["a new step", "a step that exists"])
def test_killed_at_any_system_call(tmp_path: Path, step: int) -> None:
    """SIGKILL before the 1st, 2nd, ... fsync, rename or deletion of a save, until one save gets through.

    At every point the newest checkpoint must be whole, the one before or the new one; the next start clears
    up.
    """
    outcomes = set()
    for fatal in range(1, 100):
        folder = tmp_path / str(fatal)
        saved(folder, [10, 20], keep=2)
        code = in_child(partial(save_and_die, folder, step, fatal))
        assert code in (0, KILLED)
        for read_only in (True, False):
            store = CheckpointStore(folder, 2, read_only=read_only)
            latest = store.load_latest()
            assert latest is not None
            assert latest.skipped == ()
            for name in names(folder):
                if not name.startswith("."):
                    store.load(int(name.removeprefix("step-").removesuffix(".new")))
            outcomes.add((latest.step, latest.metadata["cursor"]))
            if latest.metadata["cursor"] == "new":
                assert latest.read("weights.bin") == b"new"
            else:
                check(latest, 20)
        assert all(name.startswith("step-") and not name.endswith(".new") for name in names(folder))
        store.save(40, content(40), {"cursor": 40})
        check(store.load_latest(), 40)
        if code == 0:
            break
    assert code == 0
    assert fatal > 10
    assert outcomes == {(20, 20), (step, "new")}


def save_and_die(folder: Path, step: int, fatal: int) -> None:
    store = CheckpointStore(folder, 2)
    calls = 0

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "rename", "unlink", "rmdir"):
        setattr(os, name, deadly(getattr(os, name)))
    store.save(step, {"weights.bin": b"new", "nested/file": b"new"}, {"cursor": "new"})


def test_everything_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that survives a power cut: files, manifest, folders, rename, the parent folder."""
    store = saved(tmp_path, [10])
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path)
        events.append("sync " + "/".join(path.parts[1:] if path.parts else ("store",)))
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        events.append(f"rename to {Path(target).name}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    store.save(20, {"a": b"1", "n/b": b"2"})
    assert events == [
        "sync a",
        "sync n/b",
        "sync n",
        "sync manifest.json",
        "sync ",
        "rename to step-00000020",
        "sync store",
    ]


def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    check(saved(tmp_path, [10, 20]).load_latest(), 20)


def test_a_disk_that_fails_while_syncing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(tmp_path, [10])

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(20, content(20))
    assert names(tmp_path) == ["step-00000010"]


def test_pruning_that_fails_does_not_fail_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(tmp_path, [10], keep=1)

    def delete(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_delete", delete)
        store.save(20, content(20), {"cursor": 20})
    assert [info.step for info in store.list()] == [10, 20]
    store.save(30, content(30), {"cursor": 30})
    assert [info.step for info in store.list()] == [30]


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


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../out", "a/../../out", "manifest.json"])
def test_paths_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no path inside a checkpoint"):
        CheckpointStore(tmp_path).save(1, {name: b""})


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
    assert store.load(1).metadata == metadata
