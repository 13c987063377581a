"""Whole runs of the command line, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def rltrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "rl_trainer.cli", *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=540)
