"""Workers of a Ray that is started here are forked, and start by themselves where nothing forks them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from training_runs import below

from rl_trainer.run.local_ray import start_worker

pytestmark = pytest.mark.usefixtures("local_ray")

WORKER = """
import json, os, random, signal, sys
import numpy as np
print(json.dumps({
    "arguments": sys.argv[1:],
    "mood": os.environ.get("MOOD"),
    "folder": os.getcwd(),
    "chance": [random.random(), np.random.rand()],
    "has torch": "torch" in sys.modules,
    "handler": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
}))
"""


def started(folder: Path, **environment: str) -> dict[str, Any]:
    """What a worker says of itself that is started as Ray starts one."""
    (folder / "worker.py").write_text(WORKER)
    worker = ["-s", str(folder / "worker.py"), "--its-own=1"]  # a flag for Python comes first
    options = ["--language=PYTHON", "--serialized-runtime-env-context={}"]
    ended = subprocess.run(
        [sys.executable, start_worker.__file__, *worker, *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_fork_is_as_good_as_a_new_process(tmp_path: Path):
    first, second = started(tmp_path, MOOD="good"), started(tmp_path, MOOD="bad")
    new = started(tmp_path, MOOD="good", **{start_worker.SOCKET: str(tmp_path / "nobody")})
    assert (first.pop("has torch"), second.pop("has torch"), new.pop("has torch")) == (True, True, False)
    chances = [one.pop("chance") for one in (first, second, new)]
    assert len({chance[0] for chance in chances}) == len({chance[1] for chance in chances}) == 3
    assert first == new == second | {"mood": "good"}
    assert new == {"arguments": ["--its-own=1"], "mood": "good", "folder": str(tmp_path), "handler": True}


def test_who_is_killed_while_it_asks_ends_nothing(tmp_path: Path):
    for said in (b"", b"?", b'?[["worker.py"], {'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[start_worker.SOCKET])
            if said:
                socket.send_fds(connection, [said], [0, 1, 2])
    assert started(tmp_path)["has torch"]


def test_rays_workers_are_forks_and_its_agents_idle():
    @ray.remote(num_cpus=0)
    def parent() -> str:
        return " ".join(psutil.Process(os.getppid()).cmdline())

    assert "fork_server.py" in ray.get(parent.remote(), timeout=60)
    programs = [command for _, command in below()]
    assert sum("idle_agent.py" in program for program in programs) >= 2
    assert not [
        program for program in programs if program.startswith(("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    ]
