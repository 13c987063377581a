"""How far a download has come."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from rl_trainer.model import download
from rl_trainer.model.download import Progress, copy_folder


def test_a_long_download_tells_every_few_seconds():
    said: list[str] = []
    times = iter([0.0, 1.0, 5.0, 5.0, 6.0, 11.0, 11.0])
    progress = Progress("acme/large", said.append, 8e9, clock=lambda: next(times))
    for _ in range(4):
        progress.add(1e9)
    assert said == ["downloading acme/large: 2.00 of 8.00 GB", "downloading acme/large: 4.00 of 8.00 GB"]


def test_without_a_known_total_it_says_what_is_there():
    said: list[str] = []
    times = iter([0.0, 9.0, 9.0])
    Progress("acme/large", said.append, clock=lambda: next(times)).add(1.5e9)
    assert said == ["downloading acme/large: 1.50 GB"]


def test_bytes_of_a_copied_folder_are_counted(family_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr("rl_trainer.storage.remote_folder.is_s3_address", lambda uri: True)
    said: list[str] = []
    memory = fsspec.filesystem("memory")
    memory.put(str(family_folder("qwen2-tied")), "/download/model", recursive=True)
    memory.pipe_file("/download/model/model.safetensors.index.json", bytes(12_000_000))
    copy_folder("memory://download/model", tmp_path, said.append)
    assert said[-1] == "downloading memory://download/model: 0.01 of 0.01 GB"


def test_bars_of_the_hubs_library_draw_nothing_and_count_bytes_on_disk(capfd: pytest.CaptureFixture[str]):
    progress = Progress("acme/tiny", lambda text: None)
    kind = download._told(progress)
    for description, unit in (
        ("Fetching 5 files", "it"),
        ("Downloading bytes", "B"),
        ("Reconstructing", "B"),
    ):
        bar = kind(desc=description, total=100, unit=unit)
        bar.update(30)
        bar.close()
    assert (progress.done, progress.total) == (30, 100)
    assert capfd.readouterr() == ("", "")
