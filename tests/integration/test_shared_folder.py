"""A model folder on one node, opened on another."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from rl_api.errors import ModelError
from rl_trainer.model.shared_folder import put_folder, share_folder

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "tokenizer").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "model" / "tokenizer" / "empty.txt").touch()
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def elsewhere(folder: Path):
    """As another node's actors see it."""
    return replace(put_folder(folder, "another node"), path=folder.parent / "not on this node")


def test_on_one_node_the_folder_itself_is_opened(folder: Path):
    shared = share_folder(folder)
    assert shared.files == ()
    assert shared.open() == folder


def test_another_node_gets_the_same_files_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    shared = elsewhere(folder)
    first = shared.open()
    assert contents(first) == contents(folder)
    stamp = (first / "config.json").stat().st_mtime_ns
    assert elsewhere(folder).open() == first, "named by content"
    assert (first / "config.json").stat().st_mtime_ns == stamp
    assert [p.name for p in first.parent.iterdir()] == [first.name], "nothing half done is left"
    (folder / "config.json").write_text('{"other": 1}')
    assert elsewhere(folder).open() != first


def test_many_actors_of_one_node_open_it_at_once(folder: Path, tmp_path: Path):
    shared = elsewhere(folder)

    @ray.remote(num_cpus=0.1)
    def opened() -> Path:
        tempfile.tempdir = str(tmp_path)
        return shared.open()

    copies = ray.get([opened.remote() for _ in range(4)], timeout=120)
    assert len(set(copies)) == 1
    assert contents(copies[0]) == contents(folder)


def test_a_full_node_says_which_copy_could_not_be_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(
        ModelError, match=r"its copy .* cannot be written \(Not a directory\); free some space"
    ):
        elsewhere(folder).open()
