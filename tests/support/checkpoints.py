"""Checkpoints for the tests of the store: made, and checked in every byte."""

from __future__ import annotations

from pathlib import Path

from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.store import CheckpointStore, Writer


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
    assert sorted(checkpoint.files) == [
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
