"""A run that asks for checkpoints in the background, where learners do not see the folder, is told that it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_api import RunSpec
from rl_trainer.run.checkpoints import Checkpoints
from rl_trainer.run.run_folder import RunFolder


@pytest.mark.parametrize("asynchronous", ["auto", "always", "never"])
@pytest.mark.parametrize("seen", [True, False])
def test_always_without_effect_is_said_at_the_start(tmp_path: Path, asynchronous: str, seen: bool):
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "checkpoint": {"asynchronous": asynchronous},
        }
    )
    asked: list[Path] = []

    def reach(folder: Path) -> bool:
        assert folder.is_dir()
        asked.append(folder)
        return seen

    folder = RunFolder(tmp_path / "run")
    try:
        checkpoints = Checkpoints(spec, folder, None, print)
        sentence = checkpoints.ask_learners(reach)
    finally:
        folder.close()
    assert len(asked) == (asynchronous == "always")
    assert list(checkpoints.store.folder.iterdir()) == [], "what was made to look is gone"
    if asynchronous == "always" and not seen:
        assert sentence == (
            "checkpoint.asynchronous is always, but not all learners see the checkpoint folder "
            f"{folder.checkpoints}: what those hold goes to the driver, and training waits for it"
        )
    else:
        assert sentence is None


def test_a_folder_that_cannot_be_made_is_left_to_the_first_checkpoint(tmp_path: Path):
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "checkpoint": {"asynchronous": "always"},
        }
    )
    folder = RunFolder(tmp_path / "run")
    try:
        checkpoints = Checkpoints(spec, folder, None, print)
        checkpoints.store.folder.rmdir()
        assert checkpoints.ask_learners(lambda _: False) is None
    finally:
        folder.close()
