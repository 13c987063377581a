"""What the benchmark of modes counts as a prediction."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

PROFILE = {
    "steps": 20,
    "groupSize": 8,
    "promptsPerStep": 8,
    "decode": {"base": 0.01, "perActive": 0.001, "slots": 128},
    "lengths": [16] * 8,
    "limit": 16,
    "learner": {"beta": 1e-4},
}
SECONDS = {"disaggregated": 1.0, "collocated": 1.0, "hybrid": 1.0, "auto": 1.0}


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench"))
    return importlib.import_module("modes")


def runs(modes: Any, workload: Any, folder: Path, predicted: dict[str, float], same: str | None) -> Any:
    """One round of which each step took a second; `same`: which other column what auto chose is."""
    own = [arm for arm in SECONDS if arm != "auto" or same is None]
    return {
        "runs": {arm: [{"seconds": SECONDS[arm]}] if arm in own else [] for arm in SECONDS},
        "plan": {
            "chosen": "collocated: learners 2, samplers 2",
            "same": same,
            "run": modes.load(workload, "auto", folder, 6).to_document(),
        },
        "predictions": [predicted | {"auto": predicted[same] if same else predicted["auto"]}],
        "profile": PROFILE,
        "profiles": {arm: {} for arm in own},
    }


def test_a_cell_counts_once_and_what_was_profiled_is_no_prediction(modes: Any, tmp_path: Path) -> None:
    first, second = modes.WORKLOADS[:2]
    near = {"disaggregated": 1.01, "collocated": 1.05, "hybrid": 1.2}
    found = {
        first.name: runs(modes, first, tmp_path, near, "collocated"),
        second.name: runs(modes, second, tmp_path, near | {"auto": 0.5}, None),
    }
    rows, checks = modes.table_of(found, [first, second], exclusive=False)
    counted = {check.name: (check.found, check.wanted, check.passed) for check in checks}
    # Collocated and hybrid of both, and of the second one auto.
    assert counted["predictions of other placements within 10%"] == ("2 of 5", "5 of 5", False)
    assert counted["steps of the profiled run, from its profile, within 10%"] == ("2 of 2", "2 of 2", True)
    assert counted["predictions from a run's own profile within 10%"][1] == "7 of 7"
    assert rows[0][1].startswith("1010 / 1000 (+1%, ")
    assert rows[1][4].startswith("500 / 1000 (-50%, ")
