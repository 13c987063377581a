"""Ray as the pods of a run start it: a head with dashboard and agents, and nodes that join it, all on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]
import requests
from operator_worlds import container, groups
from ports import free_ports

from rl_operator.plan.effective import Effective

SECONDS: Final = 240.0
START: Final = """
from ray.scripts.scripts import main
from rl_trainer.run.local_ray.processes import patient
with patient():
    main()
"""
"""`ray`, on a machine under load."""


def without_ray() -> dict[str, str]:
    """The environment of a process that knows nothing of a run."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLTRAIN_"))}
    return base | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "200", "HOME": "/tmp"}


def of_a_pod(effective: Effective, token: str, role: str = "head") -> dict[str, str]:
    """That of a process in a pod, as far as Ray reads it."""
    said = {one["name"]: one.get("value", token) for one in container(groups(effective)[role])["env"]}
    return without_ray() | {name: value for name, value in said.items() if name.startswith("RAY_")}


class Head:
    """A head, with dashboard."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.gcs, self.dashboard, self.client, self.agent, *others = free_ports(7)
        self.folder, self.environment = folder, dict(environment)
        options = {
            "port": self.gcs,
            "dashboard-port": self.dashboard,
            "ray-client-server-port": self.client,
            "temp-dir": folder,
        }
        self._start(["--head", "--include-dashboard=true"], self.environment, [self.agent, *others], options)

    def join(self, environment: Mapping[str, str], resource: str) -> None:
        """Another node, which has one of this resource."""
        options = {"address": f"127.0.0.1:{self.gcs}", "resources": f'{{"{resource}": 1}}'}
        self._start([], environment, free_ports(4), options)

    def _start(
        self, words: list[str], environment: Mapping[str, str], ports: list[int], options: dict[str, Any]
    ) -> None:
        # A raylet that has to be told them gives up after 15 seconds.
        told = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
        options |= dict(zip((*told, "runtime-env-agent-port"), ports, strict=True))
        options |= {"num-cpus": 1, "object-store-memory": 80 * 2**20}
        done = self.run(
            [sys.executable, "-c", START, "start", *words]
            + [f"--{name}={value}" for name, value in options.items()],
            environment,
        )
        if done.returncode:
            self.end()
        assert done.returncode == 0, done.stderr

    def run(self, command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """A command to its end, whatever its exit code."""
        return subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def python(self, program: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """A program."""
        return self.run([sys.executable, "-c", program], environment)

    def status(self, path: str, headers: dict[str, str] | None = None, port: int = 0) -> int:
        """HTTP status of an answer of the dashboard, or of what listens at another port."""
        address = f"http://127.0.0.1:{port or self.dashboard}{path}"
        return requests.get(address, headers=headers, timeout=30).status_code

    def end(self) -> None:
        """End what was started here, and nothing else: `ray stop` ends every Ray of the machine."""
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in part for part in process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.NoSuchProcess):  # it went with one that was killed before
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
