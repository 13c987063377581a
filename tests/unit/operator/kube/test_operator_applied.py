"""Nulls that kubectl took for fields to be removed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_worlds import SETTINGS, make_run

from rl_operator.kube.applied import LAST_APPLIED, with_nulls
from rl_operator.kube.cache import Store
from rl_operator.plan.effective import Effective, plan
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
    assert with_nulls(there, annotated(told)) == found


@pytest.mark.parametrize("text", ["", "null", "[null]", "{", '{"spec": null}'])
def test_an_annotation_that_says_nothing(text: str) -> None:
    spec: dict[str, Any] = {"seed": 1}
    assert with_nulls(spec, {LAST_APPLIED: text}) == spec


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
