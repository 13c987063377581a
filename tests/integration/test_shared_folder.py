"""A model folder on one node, opened on another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from rl_api.errors import ModelError
from rl_trainer.model import shared_folder
from rl_trainer.model.shared_folder import SharedFolder, put_folder, share_folder

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "tokenizer").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "model" / "tokenizer" / "empty.txt").touch()
    return tmp_path / "model"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def elsewhere(folder: Path, names: list[str] | None = None):
    """As another node's actors see it."""
    return replace(put_folder(folder, "another node", names), path=folder.parent / "not on this node")


def test_on_one_node_the_folder_itself_is_opened(folder: Path):
    shared = share_folder(folder)
    assert (shared.files, shared.size) == ((), 2 + 256 * 9000)
    with shared.opened() as opened:
        assert opened == folder
    assert folder.is_dir()


def test_another_node_gets_the_same_files_while_somebody_has_them_open(folder: Path, temporary: Path):
    shared = elsewhere(folder)
    with shared.opened() as first:
        assert contents(first) == contents(folder)
        stamp = (first / "config.json").stat().st_mtime_ns
        with elsewhere(folder).opened() as second:
            assert second == first
        assert (first / "config.json").stat().st_mtime_ns == stamp, "one copy serves all"
        assert [p.name for p in first.parent.iterdir()] == [first.name], "nothing half done is left"
        (folder / "config.json").write_text('{"other": 1}')
        with elsewhere(folder).opened() as other:
            assert other != first
    assert list(first.parent.iterdir()) == []


def test_the_files_that_are_wanted_go_alone_and_in_pieces(
    folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rl_trainer.model.shared_folder._PIECE", 1 << 20)
    shared = elsewhere(folder, ["model.safetensors", "tokenizer/empty.txt"])
    assert [len(pieces) for _, pieces in shared.files] == [3, 0]
    assert shared.size == 256 * 9000
    with shared.opened() as opened:
        found = contents(opened)
    assert found == {name: contents(folder)[name] for name in ("model.safetensors", "tokenizer/empty.txt")}


def test_who_asks_while_a_copy_is_written_waits_for_it(
    folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    write, lock, alone = SharedFolder._write, shared_folder._lock, shared_folder._alone
    shared = elsewhere(folder)
    writers: list[Path] = []
    there, found = threading.Event(), []

    def ask() -> None:
        with shared.opened() as copy:
            found.append(contents(copy))

    second = threading.Thread(target=ask)

    def locked(path: Path, kind: int) -> int | None:
        if path.suffix == ".lock" and threading.current_thread() is second:
            there.set()
        return lock(path, kind)

    @contextlib.contextmanager
    def alone_till_the_other_is_done(copy: Path) -> Iterator[None]:
        with alone(copy):
            yield
        if threading.current_thread() is not second:
            second.join(60)  # it has opened the copy and let go of it before the writer goes on

    def written(self: SharedFolder, copy: Path) -> int | None:
        writers.append(copy)
        if len(writers) == 1:
            second.start()
            assert there.wait(60)
        else:
            there.set()
        return write(self, copy)

    monkeypatch.setattr(shared_folder, "_lock", locked)
    monkeypatch.setattr(shared_folder, "_alone", alone_till_the_other_is_done)
    monkeypatch.setattr(SharedFolder, "_write", written)
    with shared.opened() as copy:
        second.join(60)
        assert (len(writers), found) == (1, [contents(folder)])
        assert [p.name for p in copy.parent.iterdir()] == [copy.name]


def test_what_killed_processes_left_is_used_or_removed(folder: Path, temporary: Path):
    copies = temporary / "rltrain-models"
    with elsewhere(folder).opened() as copy:
        shutil.copytree(copy, temporary / "kept")
    for name in ("half done", "just begun", "in use"):
        (copies / name).mkdir()
    for name in ("half done", "in use"):
        os.utime(copies / name, (0, 0))
    (copies / "killed.lock").touch()
    os.utime(copies / "killed.lock", (0, 0))
    handle = os.open(copies / "in use", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    with elsewhere(folder).opened():
        assert {p.name for p in copies.iterdir()} == {copy.name, "just begun", "in use"}
    os.close(handle)
    os.rename(temporary / "kept", copy)  # complete: nobody was left to remove it
    stamp = (copy / "config.json").stat().st_ino
    with elsewhere(folder).opened() as again:
        assert (again, (again / "config.json").stat().st_ino) == (copy, stamp)
    assert not copy.exists()


def test_many_actors_of_one_node_open_it_again_and_again(folder: Path, temporary: Path):
    shared, expected = elsewhere(folder), contents(folder)

    @ray.remote(num_cpus=0.1)
    def opened() -> int:
        tempfile.tempdir = str(temporary)
        same = 0
        for _ in range(20):
            with shared.opened() as copy:
                same += contents(copy) == expected
        return same

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    assert ray.get([opened.remote() for _ in range(4)], timeout=120) == [20] * 4
    assert list((temporary / "rltrain-models").iterdir()) == []


def test_a_full_node_says_which_copy_could_not_be_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with (
        pytest.raises(
            ModelError, match=r"its copy .* cannot be written \(Not a directory\); free some space"
        ),
        elsewhere(folder).opened(),
    ):
        pass
