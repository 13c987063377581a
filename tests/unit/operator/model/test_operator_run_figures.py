"""What metrics show of a run, from a status as the API server may hold it."""

from __future__ import annotations

import pytest

from rl_api.progress import CheckpointStatus, Progress, Usage
from rl_operator.decide.conditions import ORDER
from rl_operator.model.figures import _UNDER_WAY, MOST_SHOWN, NUMBERS, Figures, figures_of, shown
from rl_operator.model.record import Queued, Record


def condition(kind: str, status: str, reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-02T00:00:00Z"}


def test_figures_of_a_run_that_trains() -> None:
    status = {
        "phase": "Training",
        "conditions": [condition(kind, "True") for kind in ("Accepted", "ClusterReady", "Training")],
        "progress": {
            **{"step": 3, "maxSteps": 10, "reward": -0.5, "updatedAt": "2026-01-02T00:00:00Z"},
            **{"samplerBusy": 0.75, "learnerBusy": 0.5},
        },
        "usage": {"unsaved": 7, "pools": {}},
        "queue": {"name": "main", "position": 3, "since": "2026-01-02T00:00:00Z"},
        "checkpoint": {"step": 2, "uri": "s3://a/b", "time": "2026-01-02T00:00:01Z"},
    }
    assert figures_of("2026", status) == Figures(
        "Training",
        "2026",
        numbers=(
            ("step", 3.0),
            ("max_steps", 10.0),
            ("reward_mean", -0.5),
            ("sampler_busy_ratio", 0.75),
            ("learner_busy_ratio", 0.5),
            ("updated_timestamp_seconds", 1767312000.0),
            ("checkpoint_step", 2.0),
            ("checkpoint_timestamp_seconds", 1767312001.0),
            ("unsaved_accelerator_seconds", 7.0),
        ),
        queued=Queued("main", 3, 1767312000.0),
        record=Record(waits=True),
    )


def test_the_first_condition_that_does_not_hold_is_what_a_run_waits_for() -> None:
    conditions = [
        condition("Training", "False", "Starting"),
        condition("ClusterReady", "False", "ImagePullBackOff"),
        condition("Accepted", "True"),
    ]
    assert figures_of("", {"phase": "Starting", "conditions": conditions}).waits == (
        "ClusterReady",
        "ImagePullBackOff",
    )
    assert figures_of("", {}) == Figures("Pending")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Interrupted", "Suspended"])
def test_of_a_run_that_stands_still_no_figures_are_shown(phase: str) -> None:
    conditions = [condition("Failed", "True", "OutOfRetries"), condition("ClusterReady", "False", "Finished")]
    status = {"phase": phase, "conditions": conditions, "progress": {"step": 3}}
    record = Record(result=phase.lower() if phase in ("Succeeded", "Failed") else "")
    failed = 1767312000.0 if phase == "Failed" else None
    assert figures_of("", status) == Figures(phase, failed=failed, record=record)


@pytest.mark.parametrize(
    "status",
    [
        {"progress": "none", "checkpoint": ["none"], "conditions": {"type": "Failed"}},
        {"progress": {"step": True, "reward": "high", "staleness": None, "bufferFill": 10**400}},
        {"progress": {"reward": float("nan"), "updatedAt": "yesterday"}, "conditions": ["Failed", None]},
    ],
)
def test_what_cannot_be_read_is_not_known(status: dict[str, object]) -> None:
    assert figures_of("", status) == Figures("Pending")


def test_the_fields_and_conditions_are_those_of_the_contract() -> None:
    models = {"usage": Usage(), "progress": Progress(), "checkpoint": CheckpointStatus(step=0, uri="a")}
    for group, field, _ in NUMBERS.values():
        assert field in models[group].model_dump(by_alias=True)
    assert tuple(kind for kind in ORDER if kind in _UNDER_WAY) == _UNDER_WAY


def test_many_runs_of_one_namespace_displace_neither_its_older_ones_nor_those_of_others() -> None:
    runs = {("flood", f"run-{n:04}"): Figures("Pending", f"2026-01-02T{n:04}") for n in range(1000)}
    runs |= {
        ("flood", "old"): Figures("Training", "2026-01-01"),
        ("honest", "late"): Figures("Training", "2027"),
    }
    runs |= {("flood", "ended"): Figures("Failed", "2025", failed=1.0)}
    found = shown(runs)
    assert len(found) == MOST_SHOWN + 1
    assert {("flood", "old"), ("honest", "late"), ("flood", "run-0000")} <= found.keys()
    assert not {("flood", "ended"), ("flood", "run-0999")} & found.keys()
    assert shown({("a", "x"): Figures("Failed", failed=1.0)}) == {("a", "x"): Figures("Failed", failed=1.0)}
