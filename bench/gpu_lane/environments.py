"""The environments of a machine with GPUs, made on first use: ours with vLLM's build for GPUs, and TRL's with its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

from peers import environment

from gpu_lane.child import ROOT
from gpu_lane.peer import REQUIREMENTS


def ours() -> Path:
    """The Python of bench/.venv-gpu-lane: what the trainer and its engine vLLM need, in the versions of constraints.txt.

    Raises PeerError when it cannot be installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line.partition("#")[0]
    ]
    return environment("gpu-lane", [*project["dependencies"], *extras["trainer"], *extras["vllm"]], pinned)


def peers() -> Path:
    """The Python of bench/.venv-gpu-lane-trl, for errors see `ours`."""
    return environment("gpu-lane-trl", REQUIREMENTS)
