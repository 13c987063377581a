"""`rltrain watch` against a real API server: lines, and what is drawn on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_runs import DEADLINE, condition, set_status
from kube import KubeApi

from rl_cli.main import main

pytestmark = pytest.mark.usefixtures("kubeconfig")


class Watch:
    """`rltrain watch` as a process, whose lines are awaited."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_cli.main", "watch", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def until(self, found: Callable[[str], bool]) -> str:
        """The first line for which `found` holds, when it is there."""
        with self._news:
            there = self._news.wait_for(lambda: any(map(found, self.lines)), DEADLINE)
        assert there, self.lines
        return next(filter(found, self.lines))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


# --- apply ---------------------------------------------------------------------------------------------------------


def test_watch_follows_a_run_to_its_end(kube: KubeApi, run: str) -> None:
    with Watch("arithmetic", "-n", run) as watch:
        watch.until(lambda line: "no operator has looked at it" in line)
        set_status(
            kube,
            run,
            phase="Starting",
            conditions=[condition("ClusterReady", "False", "0/1 nodes are available: insufficient cpu")],
            attempts=[{"number": 1}],
            roles={"sampler": {"desired": 2, "ready": 0}},
        )
        assert watch.until(lambda line: "Starting" in line) == (
            "arithmetic  Starting  samplers 0/2  attempt 1  - 0/1 nodes are available: insufficient cpu"
        )
        set_status(
            kube,
            run,
            phase="Training",
            conditions=[condition("ClusterReady", "True"), condition("Training", "True")],
            roles={"sampler": {"desired": 2, "ready": 2}},
            progress={
                "phase": "Training",
                "step": 12,
                "maxSteps": 50,
                "reward": 0.517,
                "heldoutScore": 0.4,
                "tokensPerSecond": 5323.4,
                "bufferFill": 0.25,
                "staleness": 0.5,
                "etaSeconds": 130,
            },
            checkpoint={"step": 10, "uri": "/data/10"},
        )
        assert watch.until(lambda line: "Training" in line) == (
            "arithmetic  Training  step 12/50  reward 0.52  held-out 0.40  speed 5,323 tokens/s  buffer 25%  "
            "staleness 0.5  samplers 2/2  attempt 1  checkpoint 10  ETA 2 min"
        )
        set_status(
            kube, run, phase="Succeeded", conditions=[condition("Succeeded", "True", "the run is done")]
        )
        watch.until(lambda line: "Succeeded" in line)
        assert watch.process.wait(DEADLINE) == 0


def test_watch_of_a_failed_run(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "attempt 1 failed: the reward function raised KeyError"
    set_status(kube, run, phase="Failed", conditions=[condition("Failed", "True", reason)])
    assert main(["watch", "arithmetic", "-n", run]) == 1
    assert capsys.readouterr().out == f"arithmetic  Failed  - {reason}\n"


def test_watch_of_a_deleted_run(kube: KubeApi, run: str) -> None:
    with Watch("arithmetic", "-n", run) as watch:
        watch.until(lambda line: "Pending" in line)
        kube.kubectl("delete", "rlrun", "arithmetic", "-n", run)
        watch.until(lambda line: line == "rltrain: run arithmetic was deleted")
        assert watch.process.wait(DEADLINE) == 1


def test_watch_of_all_namespaces(kube: KubeApi, run: str, file: Path) -> None:
    other = kube.new_namespace("cli")
    with Watch("-A") as watch:
        watch.until(lambda line: line.startswith(f"{run}/arithmetic  Pending"))
        kube.kubectl("apply", "-n", other, "-f", str(file))
        watch.until(lambda line: line.startswith(f"{other}/arithmetic  Pending"))
        kube.kubectl("delete", "rlrun", "arithmetic", "-n", other)
        watch.until(lambda line: line == f"{other}/arithmetic  deleted")


def test_watch_survives_the_api_server(kube: KubeApi, run: str) -> None:
    with Watch("arithmetic", "-n", run) as watch:
        watch.until(lambda line: "Pending" in line)
        kube.stop_apiserver()
        try:
            watch.until(lambda line: "trying again" in line)
        finally:
            kube.start_apiserver()
        set_status(kube, run, phase="Succeeded", conditions=[condition("Succeeded", "True")])
        watch.until(lambda line: "Succeeded" in line)
        assert watch.process.wait(DEADLINE) == 0


def read_terminal(master: int, *until: str) -> None:
    """Read what is drawn until all of `until` has come. A view comes in pieces, which may end anywhere in it."""
    wanted = [text.encode() for text in until]
    drawn, deadline = b"", time.monotonic() + DEADLINE
    while not all(text in drawn for text in wanted) and time.monotonic() < deadline:
        if select.select([master], [], [], 0.5)[0]:
            drawn += os.read(master, 65536)
    assert [text for text in wanted if text not in drawn] == [], drawn


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(slave)
    os.close(master)


def test_watch_draws_on_a_terminal(kube: KubeApi, run: str, terminal: tuple[int, int]) -> None:
    master, slave = terminal
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "rl_cli.main", "watch", "arithmetic", "-n", run]
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    try:
        set_status(
            kube,
            run,
            phase="Training",
            conditions=[condition("Training", "True")],
            progress={"phase": "Training", "step": 12, "maxSteps": 50, "reward": 0.517},
        )
        read_terminal(master, "arithmetic", "━", "12/50")
        set_status(kube, run, phase="Succeeded", conditions=[condition("Succeeded", "True")])
        read_terminal(master, "Succeeded")  # else it fills up while nobody reads, and who draws there waits
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait(DEADLINE)
