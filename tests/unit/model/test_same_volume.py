"""A shared folder on a node that has the folder itself, and on one that has another one in its place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from rl_trainer.model.shared_folder import SharedFolder, put_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedFolder:
    """Two files of three; Ray has a store that keeps nothing apart, and this is another node."""
    context = SimpleNamespace(get_node_id=lambda: "this")
    for name, fake in {"put": bytes, "get": bytes, "get_runtime_context": lambda: context}.items():
        monkeypatch.setattr(ray, name, fake)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    folder = tmp_path / "step"
    (folder / "model").mkdir(parents=True)
    for name in ("optimizer", "model/part", "unnamed"):
        (folder / name).write_text(name)
    return put_folder(folder, "the driver's", ["optimizer", "model/part"])


def opened(shared: SharedFolder) -> Path:
    with shared.opened() as folder:
        assert [(folder / name).read_text() for name in ("optimizer", "model/part")] == [
            "optimizer",
            "model/part",
        ]
    return folder


def test_a_node_with_the_same_volume_opens_the_folder_itself(shared: SharedFolder) -> None:
    (shared.path / "unnamed").unlink()
    assert opened(shared) == shared.path
    assert not (Path(tempfile.gettempdir()) / "rltrain-models").exists()


@pytest.mark.parametrize("change", ["gone", "longer", "younger", "a folder"])
def test_a_folder_of_the_same_path_with_another_file_is_not_opened(shared: SharedFolder, change: str) -> None:
    file = shared.path / "model" / "part"
    before = file.stat()
    file.unlink()
    if change == "a folder":
        file.mkdir()
    elif change != "gone":
        file.write_text("longer text" if change == "longer" else "other text")
        later = 1 if change == "younger" else 0
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    assert opened(shared) != shared.path
