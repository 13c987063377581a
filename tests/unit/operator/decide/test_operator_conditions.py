from __future__ import annotations

from datetime import UTC, datetime

from operator_worlds import NOW

from rl_operator.decide.conditions import Conditions


def test_conditions_keep_their_time_while_their_status_does() -> None:
    first = Conditions([], 1, NOW).set("Training", "False", "Starting", "one")
    later = datetime(2026, 3, 1, 13, tzinfo=UTC)
    second = Conditions(first.all(), 2, later).set("Training", "False", "Other", "two")
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
