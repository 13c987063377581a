"""The long benches of fleets, small and seeded, as a user runs them. `make bench-fleet` and `make bench-top` are the whole;
the short form of `make bench-arrivals` is tests/unit/operator/decide/test_operator_boost_simulation.py.

What is measured here is what else the machine does: a missed target is no failure. What happens to runs is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kube import REPOSITORY, find_binaries
from kueue_process import find_kueue

# A bench that waits in vain says so by itself; this is for one that does not.
SECONDS = 540.0

RUNS, URGENT = 10, 4
LISTED = 30


def figures(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """What a bench wrote, which has come to its end."""
    command = [sys.executable, str(REPOSITORY / "bench" / f"{name}.py"), f"--out={folder}", *options]
    environment = os.environ | {"TMPDIR": str(folder)}
    log, file = folder / "log", folder / f"{name}.json"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever it has started goes with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(log.read_text())
    # 1 is a missed target or a crash, which comes before anything is written.
    assert file.exists(), f"{name} ended with status {status} and no figures"
    found: dict[str, Any] = json.loads(file.read_text())
    assert status == (0 if found["passed"] else 1)
    return found


def queues_or_skip() -> None:
    """Kueue and kwok are there, or the test is skipped with a sentence."""
    kueue = find_kueue()
    if kueue is None:
        pytest.skip("no Kueue here: scripts/tools apiserver kueue-crds kueue builds it")
    if not (kueue.parent / "kwok").exists():
        pytest.skip("no kwok here: scripts/tools kwok builds it")


def test_urgent_runs_of_a_fleet_get_their_quota_from_runs_that_are_asked_for_a_checkpoint(
    tmp_path: Path,
) -> None:
    queues_or_skip()
    # 160 accelerators, which the runs take whole: each urgent run needs the quota of one of them.
    options = [f"--runs={RUNS}", "--namespaces=2", "--nodes=20", f"--urgent={URGENT}", "--seed=1"]
    found = figures(tmp_path, "fleet", *options, "--modes", "workload")
    (result,) = found["meta"]["results"]
    assert result["mode"] == "workload"
    assert len(result["admitted"]["latencies"]) == RUNS
    assert len(result["jobs"]["latencies"]) == RUNS
    assert len(result["urgent"]["latencies"]) == URGENT
    assert result["evicted"] == URGENT
    assert len(result["requests"]["latencies"]) == result["evicted"]
    # A head, four learners and three samplers each, and nobody else's.
    assert result["pods"] == (RUNS + 1) * 8


def test_top_lists_all_runs_and_teams_of_a_fleet(tmp_path: Path) -> None:
    if find_binaries() is None:
        pytest.skip(
            "no kube-apiserver here: scripts/tools apiserver builds it, or KUBEBUILDER_ASSETS names it"
        )
    # The bench looks for each name in what each command says.
    found = figures(tmp_path, "fleet_top", f"--runs={LISTED}", "--namespaces=3", "--tries=1")
    commands = {row["command"] for row in found["rows"]}
    ways = ("", " --by team", " --by pool", " -o json")
    assert commands == {"kubectl get -A", "rltrain --help", *(f"rltrain top -A{way}" for way in ways)}
    assert {row["runs"] for row in found["rows"]} == {LISTED}
