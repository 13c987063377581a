"""Copies that a kill leaves half done are none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_trainer.run.copies import copy
from rl_trainer.storage.remote_folder import RemoteFolder


class Killed(BaseException):
    pass


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "initial"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
    return folder


def test_a_folder_that_is_copied_is_there_when_all_of_it_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A resumed run takes the policy that it began with for whole where there is one."""
    whole, target = shutil.copytree, tmp_path / "run" / "initial"
    target.parent.mkdir()

    def half(here: Path, there: Path) -> None:
        there.mkdir()
        shutil.copyfile(here / "config.json", there / "config.json")
        raise Killed

    monkeypatch.setattr(shutil, "copytree", half)
    with pytest.raises(Killed):
        copy(source, target)
    assert not target.exists()
    monkeypatch.setattr(shutil, "copytree", whole)
    copy(source, target)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in target.parent.iterdir()] == ["initial"]


def test_a_file_that_is_copied_is_there_when_all_of_it_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def half(here: Path, there: Path) -> None:
        there.write_text("conf")
        raise Killed

    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(Killed):
        copy(source / "config.json", tmp_path / "config.json")
    assert not (tmp_path / "config.json").exists()


@pytest.mark.usefixtures("any_scheme")
def test_a_file_that_is_fetched_is_there_when_all_of_it_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is brought from an object store is brought where it is missing."""
    remote, target = RemoteFolder(f"file://{source}"), tmp_path / "run" / "config.json"

    def half(there: str, here: str, **_: Any) -> None:
        Path(here).write_text("conf")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(remote._files, "get_file", half)
        with pytest.raises(Killed):
            remote.download("config.json", target)
    assert list(target.parent.iterdir()) == []
    remote.download("config.json", target)
    assert target.read_text() == "config.json"
