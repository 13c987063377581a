from __future__ import annotations

from operator_worlds import make_plan

from rl_operator.render.objects import all_objects


def test_what_must_not_be_moved() -> None:
    effective = make_plan()
    spec = all_objects(effective, 1, "token")[2]["spec"]
    assert spec["minAvailable"] == 1 + effective.spec.learner.replicas
    assert spec["selector"]["matchExpressions"][0]["values"] == ["head", "learner"]
