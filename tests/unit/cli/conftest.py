"""`rltrain plan` as its tests call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_configs import MODELS
from plan_command import RUN, Command

from rl_cli.main import main


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command for run.yaml, whose model has the shape of a name of the scale page."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, model: str = "Qwen2.5-7B", change: tuple[str, str] = ("", "")) -> int:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(MODELS[model]))
        Path("run.yaml").write_text(RUN.replace(*change).replace("SOURCE", str(folder)))
        return main(["plan", "run.yaml", *arguments])

    return run
