"""Folders whose files are in an object store: every node has its own copy, as long as somebody has it open."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest

from rl_api.errors import ModelError, Unavailable
from rl_trainer.model.shared_folder import SharedFolder, share_folder, stored_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_scheme: None) -> SharedFolder:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    there = tmp_path / "there" / "model"
    there.mkdir(parents=True)
    files = {}
    for name in ("config.json", "part"):
        (there / name).write_bytes(name.encode() * 100)
        files[f"model/{name}"] = (
            100 * len(name),
            hashlib.sha256((there / name).read_bytes()).hexdigest(),
        )
    return stored_folder(f"file://{tmp_path}/there", files, within="model")


def test_a_node_fetches_it_once_and_keeps_it_no_longer_than_it_is_open(shared: SharedFolder, tmp_path: Path):
    assert shared.size == 1500
    assert share_folder(shared) is shared
    with shared.opened() as first:
        assert sorted(path.name for path in first.iterdir()) == ["config.json", "part"]
        assert (first / "part").read_bytes() == b"part" * 100
        (tmp_path / "there" / "model" / "part").unlink()
        with shared.opened() as second:
            assert second == first
    assert list((tmp_path / "tmp" / "rltrain-models").iterdir()) == []


def test_what_is_not_what_it_was_is_not_opened(shared: SharedFolder, tmp_path: Path):
    there = tmp_path / "there" / "model" / "part"
    there.write_bytes(b"p?rt" * 100)
    with (
        pytest.raises(ModelError, match=r"there/model/part is not what it was when it was written$"),
        shared.opened(),
    ):
        pass
    there.unlink()
    with pytest.raises(Unavailable, match=r"there cannot be read: "), shared.opened():
        pass
    assert list((tmp_path / "tmp" / "rltrain-models").iterdir()) == []
