from __future__ import annotations

from typing import Any

from operator_worlds import NOW, make_run

from rl_operator.model.decision import Note
from rl_operator.render.event import event_of

METADATA = make_run()["metadata"]
NOTE = Note("Warning", "AppFailed", "attempt 1 failed: learner 0 died")


def name(metadata: dict[str, Any] = METADATA, note: Note = NOTE, attempt: int = 1) -> str:
    found: str = event_of(metadata, note, attempt, NOW)["metadata"]["name"]
    return found


def test_an_event_is_about_its_run() -> None:
    event = event_of(METADATA, NOTE, 1, NOW)
    assert event.pop("metadata") == {"name": name(), "namespace": "team-a"}
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "name": "sums",
            "namespace": "team-a",
            "uid": "12345678-90ab",
        },
        "type": "Warning",
        "reason": "AppFailed",
        "message": "attempt 1 failed: learner 0 died",
        "source": {"component": "rltrain-operator"},
        "reportingComponent": "rltrain-operator",
        "reportingInstance": "rltrain-operator",
        "firstTimestamp": "2026-03-01T12:00:00Z",
        "lastTimestamp": "2026-03-01T12:00:00Z",
        "count": 1,
    }


def test_said_twice_it_is_there_once() -> None:
    assert name() == event_of(METADATA, NOTE, 1, NOW.replace(hour=13))["metadata"]["name"]
    assert len(name()) == len("sums.") + 16
    others = {
        name(METADATA | {"generation": 2}),
        name(METADATA | {"generation": None}),
        name(METADATA | {"uid": "other"}),
        name(attempt=2),
        name(note=Note("Warning", "Other", NOTE.message)),
        name(note=Note("Warning", NOTE.reason, "other")),
    }
    assert len(others | {name()}) == 7
    assert name(METADATA | {"generation": None}) == name(METADATA | {"generation": 0})


def test_a_long_message_is_cut_to_what_kubernetes_takes() -> None:
    assert len(event_of(METADATA, Note("Normal", "Long", "x" * 1025), 1, NOW)["message"]) == 1024
