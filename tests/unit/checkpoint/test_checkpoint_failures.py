"""The checkpoint store: whole or not there, whatever is killed, full or interrupted."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from checkpoints import check, content, names, saved

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.manifest import verify
from rl_trainer.checkpoint.store import CheckpointStore, Writer

KILLED = -signal.SIGKILL


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
    check(verify(tmp_path / "step-00000010"), 10)
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
                    verify(folder / name)
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


def written_elsewhere(folder: Path) -> dict[str, tuple[int, str]]:
    """As another process writes a file, and says what it is."""
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"weights")
    return {"model/weights": (7, hashlib.sha256(b"weights").hexdigest())}


def test_what_others_wrote_is_known_by_what_they_say_of_it(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path).begin(10) as draft:
        said = written_elsewhere(draft.folder)
        draft.write({"other": b"ours"})
        info = draft.finish(said)
    assert sorted(info.files) == ["model/weights", "other"]
    assert verify(info.path) == info


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model/weights": (8, "0" * 64)}, "weights has 7 bytes here instead of the 8 that were written"),
        ({"model/more": (1, "0" * 64)}, "model/more, which a learner wrote, is not there"),
    ],
)
def test_what_others_wrote_elsewhere_or_by_half_makes_no_checkpoint(
    tmp_path: Path, said: dict[str, tuple[int, str]], sentence: str
) -> None:
    store = saved(tmp_path, [10])
    with store.begin(20) as draft, pytest.raises(CheckpointError, match=sentence):
        draft.finish(written_elsewhere(draft.folder) | said)
    assert names(tmp_path) == ["step-00000010"]


def test_the_sentence_of_who_wrote_elsewhere_is_told_with_what_to_do(tmp_path: Path) -> None:
    store = saved(tmp_path, [10])
    sentence = r"checkpoint of step 20 .*: model/weights: No space left on device \([\d,]+ MB free\)\. .*10 is untouched"
    with pytest.raises(CheckpointError, match=sentence), store.saying(20, ""):
        raise CheckpointError("model/weights: No space left on device")


def test_killed_before_it_is_finished_a_checkpoint_is_none_and_the_one_before_is_as_it_was(
    tmp_path: Path,
) -> None:
    store = saved(tmp_path, [10])

    def killed() -> None:
        draft = store.begin(20, {"cursor": 20})
        draft.write(content(20))
        written_elsewhere(draft.folder)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == KILLED
    assert len(names(tmp_path)) == 2
    again = CheckpointStore(tmp_path)
    check(again.load_latest(), 10)
    assert names(tmp_path) == ["step-00000010"], "and nothing is left of it"
    with again.begin(20) as given_up:
        given_up.write(content(20))
    assert names(tmp_path) == ["step-00000010"]
