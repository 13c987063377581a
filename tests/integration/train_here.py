"""Whole runs in this process, as `rltrain run` has them, without a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_api import RLTrainingRun
from rl_trainer.driver import train
from rl_trainer.observe.console import Console
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.stopping import StopRequest


def train_here(run: RLTrainingRun, out: Path, search: Path | None = None) -> dict[str, Any]:
    """The summary of a run that is trained to its end in the folder `out`. `search`: where its modules and files are."""
    with (
        StopRequest() as stop,
        RunFolder(out, search=search) as folder,
        (out / "console.txt").open("w") as stream,
        Console(run.name, max_steps=run.spec.stop.max_steps, stream=stream) as console,
    ):
        return train(run, folder, console, stop)
