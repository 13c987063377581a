"""Runs whose status nobody can read: nothing is done with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from operator_worlds import NOW, make_plan, make_run

from rl_operator.decide.reconcile import reconcile
from rl_operator.decide.unreadable import condition_patch, hands_off, wrong_status
from rl_operator.model.decision import Decision
from rl_operator.model.seen import World

DONE = {
    "phase": "Succeeded",
    "attempts": [{"number": 1, "rayJob": "sums-1", "endTime": "2026-03-01T11:59:30Z"}],
    "conditions": [
        {"type": "Accepted", "status": "True", "reason": "Valid"},
        {"type": "Succeeded", "status": "True", "reason": "Succeeded"},
    ],
}


def looked_at(status: Any, **metadata: Any) -> tuple[dict[str, Any], Decision]:
    run = make_run(**metadata) | {"status": status}
    return run, reconcile(World(run=run), NOW, make_plan())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"phase": "Dreaming"}, "the status cannot be read: status.phase: found 'Dreaming'"),
        ({"progress": {"step": -1}}, "the status cannot be read: status.progress.step: found -1"),
        ({"attempts": 5}, "the status cannot be read: status.attempts: found 5"),
        ({"roles": {"sampler": {}}}, "the status cannot be read: status.roles.sampler.desired: found"),
    ],
)
def test_a_run_that_is_done_does_not_begin_again(change: dict[str, Any], sentence: str) -> None:
    _, decision = looked_at(DONE | change)
    assert decision.unreadable.startswith(sentence)
    assert (decision.create, decision.apply, decision.delete, decision.notes) == ((), (), (), ())
    assert (decision.finalizer, decision.pull, decision.ask, decision.scale) == (None, None, None, None)
    (said,) = decision.status.conditions
    assert (said.type, said.status, said.reason) == ("Accepted", "Unknown", "StatusUnreadable")
    assert said.message.startswith(sentence)
    assert "a newer version of the operator may have written it" in said.message


def test_a_status_with_more_fields_than_are_known_is_read() -> None:
    _, decision = looked_at(DONE | {"newer": {"a": [1]}})
    assert decision.unreadable == ""


def test_a_run_that_is_deleted_says_how_it_goes() -> None:
    _, decision = looked_at(DONE | {"attempts": 5}, deletionTimestamp="2026-03-01T12:00:00Z")
    assert "take away its finalizer rltrain.dev/checkpoint" in decision.status.conditions[0].message
    assert decision.finalizer is None


def applied(run: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """What an API server makes of the operations that are used here."""
    run = copy.deepcopy(run)
    for step in patch:
        *parents, last = step["path"].strip("/").split("/")
        place: Any = run
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        at = int(last) if isinstance(place, list) and last != "-" else last
        if step["op"] == "test":
            assert place[at] == step["value"]
        elif at == "-":
            place.append(step["value"])
        else:
            place[at] = step["value"]
    return run


@pytest.mark.parametrize(
    "status",
    [DONE | {"phase": "Dreaming"}, {"attempts": 5}, {"attempts": 5, "conditions": [{"type": "New"}]}],
)
def test_only_the_condition_is_written_and_only_once(status: dict[str, Any]) -> None:
    run, decision = looked_at(status)
    (said,) = decision.status.conditions
    after = applied(run, condition_patch(run, said))
    conditions = after["status"].pop("conditions")
    assert after["status"] == {key: value for key, value in status.items() if key != "conditions"}
    others = [one for one in status.get("conditions", ()) if one["type"] != "Accepted"]
    assert [one for one in conditions if one["type"] != "Accepted"] == others
    after["status"]["conditions"] = conditions
    again = hands_off(after, NOW.replace(hour=13), "StatusUnreadable", decision.unreadable)
    assert condition_patch(after, again.status.conditions[0]) == []


def test_a_run_without_a_status_can_be_told_of_trouble_too() -> None:
    run = make_run()
    (said,) = hands_off(run, NOW, "Unexpected", "division by zero").status.conditions
    assert applied(run, condition_patch(run, said))["status"]["conditions"][0]["reason"] == "Unexpected"


def test_a_condition_keeps_its_time_while_it_says_the_same() -> None:
    earlier = "2026-03-01T11:00:00Z"
    for status, time in (("Unknown", NOW.replace(hour=11)), ("True", NOW)):
        before = {"type": "Accepted", "status": status, "reason": "Any", "lastTransitionTime": earlier}
        run = make_run() | {"status": {"conditions": [{"type": "Other", "status": "Unknown"}, before]}}
        decision = hands_off(run, NOW, "Unexpected", "division by zero")
        (said,) = decision.status.conditions
        assert said.last_transition_time == time
        assert (decision.unreadable, decision.requeue) == ("division by zero", 300.0)
        assert said.message == (
            "division by zero; nothing is done with this run: a newer version of the operator may have written it"
        )


def test_what_is_wrong_is_said_in_a_sentence_of_bounded_length() -> None:
    assert wrong_status(make_run()) is None
    assert wrong_status(make_run() | {"status": None}) is None
    found = wrong_status(make_run() | {"status": {"conditions": [{"type": 1}], "phase": "Dreaming"}})
    assert found is not None
    assert found.startswith("the status cannot be read: status.")
    long = wrong_status(make_run() | {"status": {"roles": {"x" * 500: 1}}})
    assert long is not None
    assert len(long) == 300


@pytest.mark.parametrize(
    ("status", "path"),
    [
        (None, "/status"),
        ("text", "/status"),
        ({}, "/status/conditions"),
        ({"conditions": "text"}, "/status/conditions"),
        ({"conditions": []}, "/status/conditions/-"),
        ({"conditions": ["text", {"type": "Other"}]}, "/status/conditions/-"),
    ],
)
def test_where_the_condition_is_written(status: object, path: str) -> None:
    run = make_run() | {"status": status}
    (said,) = hands_off(run, NOW, "Unexpected", "why").status.conditions
    test, add = condition_patch(run, said)
    assert test == {"op": "test", "path": "/metadata/uid", "value": "12345678-90ab"}
    assert (add["op"], add["path"]) == ("add", path)


def test_a_condition_that_is_there_is_replaced_where_it_is() -> None:
    run = make_run() | {"status": {"conditions": [{"type": "Other"}, {"type": "Accepted", "status": "True"}]}}
    (said,) = hands_off(run, NOW, "Unexpected", "why").status.conditions
    assert condition_patch(run, said)[-1]["value"] == {
        "type": "Accepted",
        "status": "Unknown",
        "reason": "Unexpected",
        "message": said.message,
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    assert [(step["op"], step["path"]) for step in condition_patch(run, said)] == [
        ("test", "/metadata/uid"),
        ("test", "/status/conditions/1/type"),
        ("replace", "/status/conditions/1"),
    ]
