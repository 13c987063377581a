from __future__ import annotations

from datetime import UTC, datetime

import pytest
from operator_worlds import NOW

from rl_api.progress import Condition
from rl_operator.decide.conditions import Conditions
from rl_operator.model.decision import Note


def test_conditions_keep_their_time_while_their_status_does() -> None:
    first = Conditions({}, 1, NOW).set("Training", "False", "Starting", "one")
    later = datetime(2026, 3, 1, 13, tzinfo=UTC)
    second = Conditions({one.type: one for one in first.all()}, 2, later).set(
        "Training", "False", "Other", "two"
    )
    found = second.get("Training")
    assert found is not None
    assert (found.last_transition_time, found.observed_generation, found.message) == (NOW, 2, "two")
    second = second.set("Training", "True", "Running")
    assert second.since("Training", "True") == later
    assert second.since("Training", "False") is None
    second = second.set("Accepted", "True", "Valid")
    second = second.set("Mine", "True", "Own")
    assert [one.type for one in second.all()] == ["Accepted", "Training", "Mine"]
    assert second.clear("Training").get("Training") is None


def test_what_holds() -> None:
    conditions = Conditions({}, 1, NOW).set("Training", "False", "Starting").set("Accepted", "True", "Valid")
    held = {kind: conditions.holds(kind) for kind in ("Accepted", "Training", "Failed")}
    assert held == {"Accepted": True, "Training": False, "Failed": False}
    assert conditions.since("Failed", "True") is None
    assert [one.type for one in conditions.clear("Training").all()] == ["Accepted"]


def test_a_condition_without_a_time_gets_one() -> None:
    old = Condition(type="Training", status="False", reason="Starting")
    kept = Conditions({"Training": old}, 1, NOW).set("Training", "False", "Starting").get("Training")
    assert kept is not None
    assert kept.last_transition_time == NOW


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        (None, "Accepted False InvalidSpec", ("Warning", "InvalidSpec")),
        (None, "Accepted True Valid", None),
        ("Accepted False InvalidSpec", "Accepted False LimitExceeded", ("Warning", "LimitExceeded")),
        ("Accepted False InvalidSpec", "Accepted False InvalidSpec", None),
        (None, "Admitted False Evicted", ("Warning", "Evicted")),
        (None, "Admitted False SuspendedByOthers", ("Warning", "SuspendedByOthers")),
        (None, "Admitted False Queued", None),
        (None, "Admitted Unknown Queued", None),
        ("Admitted False Queued", "Admitted True Admitted", ("Normal", "Admitted")),
        (None, "ClusterReady False ImagePullFailed", ("Warning", "ImagePullFailed")),
        (None, "ClusterReady False Starting", None),
        (None, "ClusterReady False Evicted", None),
        ("ClusterReady True Ready", "ClusterReady True SamplersMissing", None),
        ("ClusterReady False Starting", "ClusterReady True Ready", ("Normal", "ClusterReady")),
        ("Training False Starting", "Training True Running", ("Normal", "Training")),
        (None, "Training False AppFailed", None),
        (None, "Training Unknown DriverSilent", None),
        (None, "Succeeded True Succeeded", ("Normal", "Succeeded")),
        (None, "Failed True AppFailed", ("Warning", "Failed")),
    ],
)
def test_what_people_want_to_know(before: str | None, after: str, note: tuple[str, str] | None) -> None:
    conditions = Conditions({}, 1, NOW)
    if before is not None:
        kind, status, reason = before.split()
        old = conditions.set(kind, status, reason, "before").all()  # type: ignore[arg-type]
        conditions = Conditions({one.type: one for one in old}, 1, NOW)
        assert conditions.notes() == []
    kind, status, reason = after.split()
    notes = conditions.set(kind, status, reason, "said").notes()  # type: ignore[arg-type]
    assert notes == ([] if note is None else [Note(note[0], note[1], "said")])  # type: ignore[arg-type]
