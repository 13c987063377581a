"""What the operator concludes of Kueue's gate from the answer to its question."""

from __future__ import annotations

from typing import Any

import pytest
from test_operator_client import Server

from rl_operator.kube.boost import boost_manager, levels, minds_boosts, write_boost
from rl_operator.model.decision import Boost

REFUSED = (
    'admission webhook "vworkload.kb.io" denied the request: metadata.annotations[kueue.x-k8s.io/priority-boost]: Invalid '
    'value: "not-a-number": must be a valid signed integer'
)


@pytest.mark.parametrize(
    ("answer", "minds"),
    [
        ({"status": 201, "kind": "Workload"}, False),
        ({"status": 403, "message": REFUSED}, True),
        ({"status": 422, "message": REFUSED}, True),
        ({"status": 403, "message": "exceeded quota: objects"}, None),
        ({"status": 404, "message": "the server could not find the requested resource"}, None),
        ({"status": 500, "message": 'failed calling webhook "vworkload.kb.io": connection refused'}, None),
    ],
)
def test_only_a_refusal_of_the_boost_says_that_the_gate_is_on(
    answer: dict[str, Any], minds: bool | None
) -> None:
    server = Server(dict(answer))
    assert server.ask(lambda api: minds_boosts(api, "team-a")) is minds
    request = server.requests[0]
    assert (request.method, request.query["dryRun"]) == ("POST", "All")
    assert request.path == "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/workloads"


def test_a_boost_is_applied_by_a_name_of_its_own_and_takes_nothing_over() -> None:
    server = Server({"kind": "Workload"})
    server.ask(lambda api: write_boost(api, "team-a", Boost("sums", "u", 12), boost_manager("system-a")))
    assert dict(server.requests[0].query) == {"fieldManager": "rltrain-boost-system-a"}
    metadata = {"name": "sums", "namespace": "team-a", "uid": "u"}
    metadata["annotations"] = {"kueue.x-k8s.io/priority-boost": "12"}  # type: ignore[assignment]
    assert server.bodies[0]["metadata"] == metadata
    assert "spec" not in server.bodies[0]


def test_levels_are_of_all_classes_and_above_those_up_to_which_queues_borrow() -> None:
    borrowing = {"preemption": {"borrowWithinCohort": {"maxPriorityThreshold": 499}}}
    answers: list[dict[str, Any]] = [
        {"items": [{"metadata": {}, "value": 1000}, {"metadata": {}, "value": -5}]},
        {"items": [{"metadata": {}, "value": 1000}, {"metadata": {}}]},
        {"items": [{"metadata": {}, "spec": borrowing}, {"metadata": {}, "spec": {}}, {"metadata": {}}]},
    ]
    assert Server(*answers).ask(levels) == (-5, 500, 1000)
