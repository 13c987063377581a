"""From a run object to what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_cli.view import Row, changed, length, line, row, size

HYBRID = {"mode": "hybrid", "samplers": 3, "shared": 1, "measuredStepSeconds": 4.5}
ALL = {"mode": "collocated", "sharedSamplers": 3, "predictedStepSeconds": 3.0}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def run(*, spec: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, **status: Any) -> Any:
    return {
        "metadata": {
            "name": "arithmetic",
            "namespace": "team-a",
            "uid": "u1",
            "creationTimestamp": "2026-01-02T03:00:00Z",
            **(metadata or {}),
        },
        "spec": {"model": {"source": "tiny"}, "stop": {"maxSteps": 50}, **(spec or {})},
        "status": status,
    }


def conditions(**states: str | tuple[str, str]) -> list[dict[str, str]]:
    pairs = {
        kind: state if isinstance(state, tuple) else (state, f"{kind} says") for kind, state in states.items()
    }
    return [{"type": kind, "status": state, "message": text} for kind, (state, text) in pairs.items()]


def test_everything_that_is_known() -> None:
    shown = row(
        run(
            phase="Training",
            conditions=conditions(Accepted="True", ClusterReady="True", Training="True"),
            progress={
                "step": 12,
                "maxSteps": 40,
                "reward": 0.517,
                "heldoutScore": 0.46,
                "tokensPerSecond": 5323.4,
                "totalTokensPerSecond": 8921.4,
                "samplerCpus": 2.0,
                "learnerGpuBusy": 0.5,
                "objectStoreBytes": 12_000_000,
                "betweenNodesBytes": 999_999,
                "bufferFill": 0.25,
                "staleness": 0.5,
                "etaSeconds": 130.0,
                "updatedAt": "2026-01-02T03:04:00Z",
            },
            checkpoint={"step": 10, "uri": "/data/10"},
            attempts=[
                {
                    "number": 1,
                    "endTime": "2026-01-02T03:01:00Z",
                    "fromStep": 0,
                    "toStep": 5,
                    "reason": "HeadLost: gone",
                },
                {"number": 2},
            ],
            roles={"sampler": {"desired": 4, "ready": 3}, "learner": {"desired": 1, "ready": 1}},
        ),
        NOW,
    )
    assert line(shown) == (
        "arithmetic  Training  step 12/40  reward 0.52  held-out 0.46  speed 5,323 tokens/s  buffer 25%  "
        "staleness 0.5  samplers 3/4  attempt 2  checkpoint 10  ETA 2 min"
    )
    assert shown.use() == {
        "tokens": "8,921/s with prompts",
        "cores": "sampler 2.0",
        "GPUs": "learner 50%",
        "stored": "12 MB a step",
        "nodes": "1.0 MB a step between them",
    }
    assert shown.learners == (1, 1)
    assert shown.ended == ("attempt 1 (steps 0 to 5): HeadLost: gone",)
    assert shown.updated == NOW - timedelta(seconds=5)
    assert not shown.over


def test_what_is_not_known_is_not_shown() -> None:
    young = row(run(metadata={"creationTimestamp": "2026-01-02T03:04:00Z"}), NOW)
    assert line(young) == "arithmetic  Pending  - no operator has looked at it yet"
    bare = row({"metadata": {"name": "x"}}, NOW)
    assert (bare.namespace, bare.phase, bare.step, bare.created) == ("", "Pending", None, None)


def test_a_run_that_nobody_looks_at() -> None:
    reason = row(run(), NOW).reason
    assert reason.startswith("no operator has looked at it for 4 min: is one running")


@pytest.mark.parametrize(
    ("phase", "states", "reason"),
    [
        ("Pending", {"Accepted": "False"}, "Accepted says"),
        ("Failed", {"Failed": "True", "ClusterReady": "False"}, "Failed says"),
        ("Succeeded", {"Succeeded": "True", "ClusterReady": "False", "Training": "False"}, ""),
        ("Suspended", {"Accepted": "True", "Suspended": "True", "ClusterReady": "False"}, "Suspended says"),
        ("Stopping", {"Suspended": "Unknown", "Training": "True"}, "Suspended says"),
        (
            "Starting",
            {"Suspended": "False", "ClusterReady": "False", "Training": "False"},
            "ClusterReady says",
        ),
        ("Pending", {"Admitted": "False", "ClusterReady": "False"}, "Admitted says"),
        ("Starting", {"ClusterReady": "True", "Training": "False"}, "Training says"),
        ("Training", {"ClusterReady": "True", "Training": "Unknown"}, "Training says"),
        ("Training", {"ClusterReady": "True", "Training": "True"}, ""),
    ],
)
def test_the_reason_is_the_condition_nearest_to_the_cause(
    phase: str, states: dict[str, Any], reason: str
) -> None:
    assert row(run(phase=phase, conditions=conditions(**states)), NOW).reason == reason


def test_a_role_that_lacks_pods_says_so() -> None:
    shown = row(
        run(
            phase="Training",
            conditions=conditions(ClusterReady="True", Training="True"),
            roles={
                "learner": {"desired": 1, "ready": 1},
                "sampler": {"desired": 2, "ready": 1, "reason": "no room"},
            },
        ),
        NOW,
    )
    assert shown.reason == "sampler: no room"


def test_the_end_is_told_by_conditions_and_not_by_the_phase_alone() -> None:
    shown = row(run(phase="Training", conditions=conditions(Succeeded="True")), NOW)
    assert shown.phase == "Succeeded"
    assert shown.over


def test_a_deleted_run_is_stopping() -> None:
    deleted = run(phase="Training", metadata={"deletionTimestamp": "2026-01-02T03:04:00Z"})
    assert row(deleted, NOW).phase == "Stopping"


def test_speed_is_not_shown_of_a_run_that_stands() -> None:
    progress = {"step": 3, "tokensPerSecond": 100.0, "etaSeconds": 10.0, "bufferFill": 0.5, "staleness": 1.0}
    shown = row(run(phase="Suspended", conditions=conditions(Suspended="True"), progress=progress), NOW)
    assert list(shown.facts()) == ["step", "-"]


def test_a_sentence_cannot_steer_the_terminal() -> None:
    states = conditions(Failed=("True", "the end\n\x1b[2Jof it"))
    assert row(run(conditions=states), NOW).reason == "the end \ufffd[2Jof it"


def test_a_zero_is_shown() -> None:
    progress = {"step": 0, "reward": 0.0, "heldoutScore": 0.0}
    shown = row(run(phase="Training", conditions=conditions(Training="True"), progress=progress), NOW)
    assert line(shown) == "arithmetic  Training  step 0/50  reward 0.00  held-out 0.00"


def test_what_is_news() -> None:
    base = Row(namespace="a", name="b", uid="c", phase="Training", step=1, reward=0.1)
    from dataclasses import replace

    assert changed(None, base)
    assert not changed(base, replace(base, reward=0.2, updated=NOW, eta=3.0))
    assert changed(base, replace(base, step=2))
    assert changed(base, replace(base, reason="why"))
    assert changed(base, replace(base, uid="another run of this name"))


def test_line_with_namespace() -> None:
    shown = Row(namespace="a", name="b", uid="c", phase="Training")
    assert line(shown, with_namespace=True) == "a/b  Training"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_lengths(seconds: float, text: str) -> None:
    assert length(seconds) == text


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (
            {"mode": "collocated", "samplers": 2, "shared": 2},
            "  placement collocated (2 of 2 samplers share)",
        ),
        (
            {
                **{"mode": "hybrid", "samplers": 3, "shared": 1},
                **{"measuredStepSeconds": 4.52, "predictedStepSeconds": 4.2},
            },
            "  placement hybrid (1 of 3 samplers share), 4.5 s a step, 4.2 s predicted",
        ),
        ({"mode": "disaggregated", "samplers": 2, "shared": 0, "measuredStepSeconds": 4.5}, ""),
        (
            {
                **{"mode": "disaggregated", "samplers": 2, "shared": 0},
                **{"measuredStepSeconds": 4.5, "predictedStepSeconds": 4.2},
            },
            "  placement disaggregated, 4.5 s a step, 4.2 s predicted",
        ),
        (
            {**HYBRID, "planned": {"mode": "hybrid", "sharedSamplers": 1, "attempt": 1}},
            "  placement hybrid (1 of 3 samplers share), planned by attempt 1, 4.5 s a step",
        ),
        (
            {**HYBRID, "wanted": {"mode": "disaggregated", "sharedSamplers": 0}},
            "  placement hybrid (1 of 3 samplers share), 4.5 s a step  wanted disaggregated",
        ),
        (
            {**HYBRID, "wanted": ALL, "next": {**ALL, "attempt": 1}},
            "  placement hybrid (1 of 3 samplers share), 4.5 s a step"
            "  wanted collocated (3 of 3 samplers share), 3.0 s predicted, given to the next attempt",
        ),
        (
            {**HYBRID, "wanted": ALL | {"refused": "spec.checkpoint is null"}},
            "  placement hybrid (1 of 3 samplers share), 4.5 s a step"
            "  wanted collocated (3 of 3 samplers share), 3.0 s predicted, not given: spec.checkpoint is null",
        ),
        ({**HYBRID, "wanted": 7, "planned": "x"}, "  placement hybrid (1 of 3 samplers share), 4.5 s a step"),
        ({"mode": 5, "samplers": "2", "shared": True}, ""),
        (None, ""),
    ],
)
def test_who_shares_devices(placement: Any, text: str) -> None:
    shown = row(run(phase="Training", placement=placement), NOW)
    assert line(shown).startswith(f"arithmetic  Training{text}  - ")
    assert ("placement" in shown.facts()) is bool(text)


def test_what_the_driver_wants_is_news_and_what_a_step_takes_is_not() -> None:
    def shown(**placement: Any) -> Row:
        return row(run(phase="Training", placement=HYBRID | placement), NOW)

    assert not changed(shown(), shown(measuredStepSeconds=5.0))
    assert changed(shown(), shown(wanted=ALL))
    assert changed(shown(wanted=ALL), shown(wanted=ALL | {"refused": "a limit"}))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (3100, "3.1 kB"),
        (320_000, "320 kB"),
        (14.2e9, "14 GB"),
        (2.25e15, "2,250.0 TB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
