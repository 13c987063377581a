"""Nulls that kubectl took for fields to be removed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_worlds import SETTINGS, Story, condition, make_run

from rl_operator.kube.applied import LAST_APPLIED, with_nulls
from rl_operator.kube.cache import Store
from rl_operator.model.seen import World
from rl_operator.plan.effective import Effective, Plan, plan
from rl_operator.plan.refused import Refused


def annotated(spec: object) -> dict[str, str]:
    return {LAST_APPLIED: json.dumps({"spec": spec})}


@pytest.mark.parametrize(
    ("there", "told", "found"),
    [
        ({"seed": 1}, {"seed": 1, "checkpoint": None}, {"seed": 1, "checkpoint": None}),
        ({"checkpoint": {"keep": 2}}, {"checkpoint": None}, {"checkpoint": {"keep": 2}}),  # set since
        ({"learner": {}}, {"learner": None, "colour": None}, {"learner": {}}),  # null means nothing there
        ({"seed": 1}, {"seed": 1, "learner": None}, {"seed": 1}),
        (
            {"task": {"name": "a"}},
            {"task": {"evaluation": None}},
            {"task": {"name": "a", "evaluation": None}},
        ),
        ({"seed": 1}, ["null"], {"seed": 1}),
        (["no spec"], {"checkpoint": None}, ["no spec"]),
    ],
)
def test_what_was_applied_as_null_is_null(there: object, told: object, found: object) -> None:
    assert with_nulls(there, annotated(told)).spec == found


@pytest.mark.parametrize("text", ["", "null", "[null]", "{", '{"spec": null}'])
def test_an_annotation_that_says_nothing(text: str) -> None:
    spec: dict[str, Any] = {"seed": 1}
    assert with_nulls(spec, {LAST_APPLIED: text}).spec == spec


def test_a_run_without_checkpoints_stays_one() -> None:
    run = make_run()
    told = run["spec"] | {"checkpoint": None}
    del run["spec"]["checkpoint"]
    assert isinstance(plan(run, [], SETTINGS), Refused), "storage is missing"
    run["metadata"]["annotations"] = annotated(told)
    store = Store()
    store.put(run)
    stored = store.run(("team-a", "sums"))
    assert stored is not None
    assert "annotations" not in stored["metadata"]
    found = plan(stored, [], SETTINGS)
    assert isinstance(found, Effective)
    assert found.spec.checkpoint is None


def seen(spec: dict[str, Any], told: object, **status: Any) -> tuple[World, Plan]:
    """What a store makes of a run whose file was applied by kubectl, and its plan."""
    store = Store()
    run = make_run(spec, annotations=annotated(told), resourceVersion="7") | {"status": status}
    store.put(run)
    stored = store.run(("team-a", "sums"))
    assert stored is not None
    return World(run=stored), plan(stored, [], SETTINGS)


def checkpointed(found: Plan) -> bool:
    assert isinstance(found, Effective)
    return found.spec.checkpoint is not None


def test_a_null_that_comes_after_the_beginning_changes_nothing() -> None:
    """The API server's rules do not see it: the field was absent before, and is absent now."""
    told = {"checkpoint": None, "stop": {"targetReward": None}, "cleanup": {"ttlAfterFinished": None}}
    world, found = seen({"stop": {}, "cleanup": {}}, told, nulls=[])
    assert checkpointed(found)
    world, found = seen(
        {"checkpoint": None, "stop": {}}, told, nulls=[]
    )  # by a patch, which the API server keeps
    assert "checkpoint" not in world.spec
    assert list(world.late_nulls) == ["checkpoint"]
    assert world.nulls == ["stop.targetReward"], "that may change"


def test_a_null_of_the_beginning_stays() -> None:
    run_spec = make_run()["spec"]
    del run_spec["checkpoint"]
    for told in ({}, {"checkpoint": None}):
        found = with_nulls(run_spec, annotated(told), ["checkpoint"])
        assert found.spec == run_spec | {"checkpoint": None}
        assert (found.paths, found.late) == (["checkpoint"], [])


def test_a_null_that_came_too_late_is_said() -> None:
    story = Story()
    story.begin()
    assert story.run["status"]["nulls"] == []
    story.run = {**story.run, "lateNulls": ["checkpoint"]}
    found = condition(story.look(), "Accepted")
    assert found == (
        "True",
        "Valid",
        "the run can be carried out; null came too late for checkpoint: that cannot be changed on a run that exists",
    )


def test_an_annotation_that_is_nested_too_deeply() -> None:
    text = '{"spec": {"task": {"args": ' + '{"a": ' * 5000 + "null" + "}" * 5003
    assert with_nulls({"seed": 1}, {LAST_APPLIED: text}).spec == {"seed": 1}
