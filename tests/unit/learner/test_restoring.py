"""What a resumed learner has of a checkpoint on its node's disk at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file

from rl_trainer.checkpoint.state import SavedLearners
from rl_trainer.learner.actor import LearnerActor
from rl_trainer.learner.head_choice import HeadChoice


class Disk:
    """Copies as another node's would be: which there are now, and every set that there has been."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: set[str] = set()
        self.seen: list[set[str]] = []

    def shared(self, name: str) -> SimpleNamespace:
        @contextmanager
        def opened() -> Iterator[Path]:
            self.now.add(name)
            self.seen.append(set(self.now))
            yield self.folder
            self.now.remove(name)

        return SimpleNamespace(opened=opened)


def test_the_parts_of_a_checkpoint_are_copied_to_a_node_one_after_the_other(tmp_path: Path):
    for name in ("moments", "adapter", "critic"):
        save_file({name: torch.ones(1)}, tmp_path / name)
    disk, read = Disk(tmp_path), []
    actor = object.__new__(LearnerActor)
    actor.learner = SimpleNamespace(  # type: ignore[assignment]
        resume=lambda base, adapter: read.append((base, sorted(adapter))),
        load_critic=lambda critic: read.append(sorted(critic)),
        training=SimpleNamespace(
            optimizer=SimpleNamespace(load=lambda moments: read.append(sorted(moments))), steps=0
        ),
        head=SimpleNamespace(choice=HeadChoice()),
    )
    saved = SavedLearners(tmp_path, ("moments",), 3, ("adapter",), ("critic",))
    shared = {name: disk.shared(name) for name in saved.parts}
    actor.restore(saved, shared, disk.shared("initial"), None)  # type: ignore[arg-type]
    assert read == [(tmp_path, ["adapter"]), ["moments"], ["critic"]]
    assert actor.learner.training.steps == 3
    assert disk.seen == [{"initial"}, {"initial", "adapter"}, {"optimizer"}, {"critic"}]
