"""`bench/modes.py` in small, as a user runs it: all modes of one workload really run, and the planner's word on each.

What is measured here is what else the machine does: nothing is held against a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from kube import REPOSITORY

# Whole runs, one after the other, each of which has deadlines of its own.
SECONDS = 800.0

ARMS = ("disaggregated", "collocated", "hybrid", "auto")
STEPS = 6


def test_each_mode_of_a_workload_is_run_and_predicted(tmp_path: Path) -> None:
    options = [f"--out={tmp_path}", "--rounds=1", f"--steps={STEPS}", "--only=short answers"]
    command = [sys.executable, str(REPOSITORY / "bench" / "modes.py"), *options]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    bench = partial(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    done = bench()
    assert (tmp_path / "modes.json").exists(), done.stderr
    found = json.loads((tmp_path / "modes.json").read_text())
    assert done.returncode == (0 if found["passed"] else 1)
    (row,) = found["rows"]
    assert row["workload"] == "short answers"
    assert row["best"] in ARMS
    assert row["chosen"].split(":")[0] in ARMS
    (known,) = json.loads((tmp_path / "modes-runs.json").read_text()).values()
    for arm in ARMS:
        (run,) = known["runs"][(arm == "auto" and known["plan"]["same"]) or arm]
        assert run["steps"] == STEPS - 4  # those of the warm-up are not counted
        assert run["seconds"] > 0
        assert known["predictions"][0][arm] > 0
    apart, together = known["profile"], known["profiles"]["collocated"]
    assert together["devices"].items() >= {"learner": 2, "sampler": 2}.items()
    # In step roles take turns: who is alone computes beside nobody, who is not beside the other one most of the time.
    assert apart["devices"].items() >= {"learner": 1, "sampler": 1, "learnerCompany": 0.0}.items()
    assert together["devices"]["learnerCompany"] > 0.5
    # Tried where it cannot be measured of the run itself.
    assert 0 <= apart["learner"]["contention"] <= 1
    assert 0 <= apart["decode"]["contention"] <= 1
    assert apart["learner"]["perPass"] >= 0
    assert together["learner"]["contention"] is None
    # What is there is not run again.
    again = bench()
    assert "s per step" not in again.stderr
    assert json.loads((tmp_path / "modes.json").read_text())["rows"] == [row]
