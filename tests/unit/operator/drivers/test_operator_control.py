"""What a service's control says may be anything: nothing is believed that is not of the right kind and size."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rl_operator.drivers.control import read_control
from rl_operator.model.service import Control, Evaluation, Replica, VersionFigures, gate_text

NOW = datetime(2026, 11, 1, tzinfo=UTC)
DIGEST = "ab" * 32


def read(**document: Any) -> Control:
    return read_control(document, "chat-abcde", "sums", NOW)


def test_what_is_said_is_read() -> None:
    found = read(
        replicas=[{"id": "r1", "version": "v1", "loading": None, "error": None}],
        versions={
            "v1": {
                "requests": 10,
                "errors": 1,
                "deaths": 2,
                "tpot": {"p50": 0.1, "p95": 0.2},
                "probe": {"score": 0.5, "n": 4},
            }
        },
        checkpoints=[{"step": 20, "digest": DIGEST, "source": "/x/step-20"}],
        problem="",
        evaluations={DIGEST: {"state": "passed", "message": "good", "report": {"passed": True}}},
    )
    assert found.replicas == (Replica("r1", "v1"),)
    assert found.versions == {"v1": VersionFigures(10, 1, 0.2, 0.5, 2)}
    assert [one.version for one in found.checkpoints] == ["sums-step-20-abababab"]
    assert found.evaluations == {DIGEST: Evaluation("passed", "good")}


@pytest.mark.parametrize(
    "document",
    [
        {"replicas": "many", "versions": [], "checkpoints": {}, "evaluations": None, "problem": 7},
        {
            "replicas": [7, None, []],
            "versions": {"v": 7},
            "checkpoints": [None, "x"],
            "evaluations": {"d": []},
        },
        {"versions": {"v": {"requests": -1, "errors": True, "tpot": {"p95": "fast"}, "probe": 3}}},
        {"versions": {"v": {"requests": 1e400, "tpot": {"p95": float("nan")}, "probe": {"score": -1}}}},
    ],
)
def test_nonsense_is_nothing(document: dict[str, Any]) -> None:
    found = read(**document)
    assert found.checkpoints == ()
    assert all(one in (VersionFigures(),) for one in found.versions.values())


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "ab"},
        {"digest": "AB" * 32},
        {"digest": None},
        {"source": ""},
        {"source": "x" * 1025},
        {"source": "a\x1b[31mb"},
        {"source": None},
    ],
)
def test_a_checkpoint_that_could_not_be_loaded_again_is_none(change: dict[str, Any]) -> None:
    assert read(checkpoints=[{"step": 1, "digest": DIGEST, "source": "/x"} | change]).checkpoints == ()


def test_an_evaluation_says_what_was_asked() -> None:
    gate = {"probe": {"maxDrop": 0.05, "minScore": None}}
    one = {"state": "passed", "message": "good", "serving": "cd" * 32, "gate": gate}
    found = read(
        evaluations={DIGEST: one, "first": {**one, "serving": None, "gate": {"x": "x" * 5000}}}
    ).evaluations
    assert found[DIGEST] == Evaluation("passed", "good", "cd" * 32, gate_text(gate))
    assert gate_text(dict(reversed(gate.items()))) == found[DIGEST].gate != gate_text({"probe": {}})
    assert found["first"] == Evaluation("passed", "good")


@pytest.mark.parametrize(("said", "known"), [(True, True), (False, False), (None, False), ("yes", False)])
def test_what_says_nothing_of_the_policy_is_told_apart(said: object, known: bool) -> None:
    one = {"state": "error", "error": "no space", "count": 1, "retryable": said}
    found = read(evaluations={DIGEST: one}, copies=[one])
    assert (found.evaluations[DIGEST].retryable, found.replicas[0].retryable) == (known, known)


def test_copies_that_were_counted_are_as_many_as_there_are() -> None:
    said = [
        {"version": "v2", "loading": None, "error": None, "count": 1020},
        {"version": "v1", "loading": "v2", "error": None, "count": 3},
        {"version": None, "loading": None, "error": "no space", "count": 1},
        {"version": "v1", "count": "many"},
        {"version": "v1", "count": True},
        7,
    ]
    found = read(replicas=[{"id": "r1", "version": "v2"}], copies=said).replicas
    assert len(found) == 1024
    assert [sum(one.version == version for one in found) for version in ("v2", "v1", "")] == [1020, 3, 1]
    assert found[-1] == Replica("", error="no space")
    endless = read(copies=[{"version": "v1", "count": 10**9}, {"version": "v2", "count": 10**9}]).replicas
    assert len(endless) == 4096


def test_there_are_never_too_many() -> None:
    found = read(
        replicas=[{"id": str(number)} for number in range(1000)],
        versions={str(number): {} for number in range(1000)},
        problem="x" * 10_000,
    )
    assert (len(found.replicas), len(found.versions), len(found.problem)) == (64, 64, 500)
