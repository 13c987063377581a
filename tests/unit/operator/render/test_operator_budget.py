from __future__ import annotations

from operator_worlds import make_plan

from rl_operator.render.objects import all_objects


def test_what_must_not_be_moved() -> None:
    effective = make_plan({"learner": {"replicas": 4}})
    spec = all_objects(effective, 1, b"key")[1]["spec"]
    assert spec["minAvailable"] == 5, "the head and the learners"
    assert spec["selector"]["matchExpressions"][0]["values"] == ["head", "learner"]
