"""Whole runs of the command line, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rl_trainer.observe.metrics import StepRecord, read_metrics

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
LEARNING = {"warmStart.maxSteps": 120, "task.evaluation": "{everySteps: 100, samples: 50}"}
"""What a run of a few steps changes of the quickstart, so that it learns."""


def rltrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "rl_trainer.cli", *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=540)


def train(out: Path, changes: Mapping[str, object], steps: int) -> list[StepRecord]:
    """What a run of so many steps, the quickstart but for `changes`, says of each; it ends well and in silence."""
    given = {**changes, "stop": f"{{maxSteps: {steps}}}"}
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    done = rltrain("run", str(QUICKSTART), "--out", str(out), *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:] + done.stderr
    assert "vllm" not in done.stdout.lower(), "it talks"
    found = read_metrics(out / "metrics.jsonl")
    assert [step.step for step in found] == list(range(1, steps + 1))
    assert json.loads((out / "summary.json").read_text())["steps"] == steps
    return found
