from __future__ import annotations

from typing import Any

import pytest
from operator_documents import METADATA, TIME, document
from operator_worlds import NOW

from rl_operator.model.parse import (
    parse_event,
    parse_gateway,
    parse_live,
    parse_node,
    parse_pod,
    parse_ray,
    parse_ray_service,
)
from rl_operator.model.seen import Container, Event, Live, Pod


def test_a_pod_from_its_parts() -> None:
    status = {
        "phase": "Running",
        "reason": "Evicted",
        "message": "low on memory",
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"},
        ],
        "initContainerStatuses": [
            {"name": "wait", "state": {"waiting": {"reason": "PodInitializing", "message": "soon"}}}
        ],
        "containerStatuses": [
            {
                "name": "ray",
                "image": "i",
                "ready": True,
                "restartCount": 1,
                "state": {"running": {}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "killed"}},
            },
            {
                "name": "other",
                "state": {"terminated": {"reason": "Error", "exitCode": 1}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            },
        ],
    }
    containers = [{"resources": {"limits": {"memory": "1Gi"}}}, {"resources": {"limits": {"memory": "2Gi"}}}]
    spec = {"nodeName": "n", "containers": containers}
    metadata = METADATA | {"deletionTimestamp": TIME}
    assert parse_pod(document("Pod", metadata=metadata, spec=spec, status=status)) == Pod(
        name="sums-2",
        uid="u",
        role="head",
        attempt=2,
        phase="Running",
        ready=True,
        node="n",
        created=NOW,
        deleting=NOW,
        reason="Evicted",
        message="low on memory",
        unschedulable="full",
        memory_limit="1Gi",
        containers=(
            Container("wait", waiting="PodInitializing", waiting_message="soon"),
            Container(
                "ray", "i", ready=True, restarts=1, ended="OOMKilled", exit_code=137, ended_message="killed"
            ),
            Container("other", ended="Error", exit_code=1),
        ),
    )
    assert not parse_pod({"metadata": {"name": "x"}}).gone


def test_a_pod_that_is_scheduled_or_not_ready() -> None:
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": "PodScheduled", "status": "True", "reason": "Other", "message": "m"},
    ]
    pod = parse_pod(document("Pod", status={"conditions": conditions}))
    assert (pod.ready, pod.unschedulable) == (False, "")


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted", "low on memory"),
        ({}, "DeletionByTaintManager", "unreachable"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "Any"}]}, "", ""),
    ],
)
def test_a_pod_that_is_taken_away_says_why(status: dict[str, Any], reason: str, message: str) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    pod = parse_pod(document("Pod", status={"conditions": [target | {"message": "unreachable"}]} | status))
    assert (pod.reason, pod.message) == (reason, message)


def test_an_event_from_its_parts() -> None:
    about = {"kind": "Pod", "name": "p"}
    event = {"involvedObject": about, "reason": "R", "message": "M", "lastTimestamp": TIME}
    assert parse_event(event) == Event("Pod", "p", "R", "M", NOW)
    assert parse_event({}) == Event("", "", "", "")


def test_the_time_of_an_event_is_that_of_its_last_occurrence() -> None:
    early = "2026-03-01T11:00:00Z"
    for event in (
        {"series": {"lastObservedTime": TIME}, "lastTimestamp": early, "eventTime": early},
        {"series": None, "lastTimestamp": None, "eventTime": TIME, "metadata": {"creationTimestamp": early}},
        {"metadata": {"creationTimestamp": TIME}},
    ):
        assert parse_event(event).time == NOW


def test_an_object_from_its_parts() -> None:
    metadata = {"uid": "u", "annotations": {"rltrain.dev/manifest": "h"}}
    assert parse_live({"metadata": metadata, "spec": {"a": 1}}) == Live("u", "h", {"a": 1})


def test_what_an_annotation_says_is_no_longer_than_an_image() -> None:
    said = {"annotations": {"rltrain.dev/image": "a" * 200_000}}
    assert parse_ray({"metadata": METADATA | said}).began == {"image": "a" * 512}


SERVE_ERROR = """The deployment failed to start 3 times in a row. See controller logs for details. Error:
ray::ServeReplica:rltrain:policy.initialize_and_get_metadata()
  File "replica.py", line 55, in __init__
    check_installed(setup.serving.vllm.asker)
rl_api.errors.InvalidConfig: spec.engine: found vllm, which is not installed
"""


@pytest.mark.parametrize(
    ("deployments", "problem"),
    [
        (
            {"policy": {"status": "DEPLOY_FAILED", "message": SERVE_ERROR}},
            "rltrain: spec.engine: found vllm, which is not installed",
        ),
        (
            {"policy": {"status": "UNHEALTHY", "message": "Error:\nRuntimeError: out of memory\n"}},
            "rltrain: RuntimeError: out of memory",
        ),
        ({"policy": {"status": "HEALTHY", "message": "all is well"}}, "rltrain: Failed to update"),
        ({"policy": {"status": "DEPLOY_FAILED"}}, "rltrain: Failed to update"),
        ({}, "rltrain: Failed to update"),
        ("odd", "rltrain: Failed to update"),
    ],
)
def test_why_serve_does_not_run(deployments: Any, problem: str):
    failed = {
        "status": "DEPLOY_FAILED",
        "message": "Failed to update",
        "serveDeploymentStatuses": deployments,
    }
    applications = {"rltrain": failed, "control": {"status": "RUNNING", "message": ""}}
    status = {"activeServiceStatus": {"rayClusterName": "c", "applicationStatuses": applications}}
    found = parse_ray_service(document("RayService", status=status))
    assert found.problem == problem
    assert found.applications == {"rltrain": "DEPLOY_FAILED", "control": "RUNNING"}


@pytest.mark.parametrize(
    ("active", "pending", "observed", "steps", "share"),
    [
        ({"rayClusterName": "a", "targetCapacity": 100}, {}, 2, True, None),
        ({"rayClusterName": "a"}, {}, 2, False, None),
        ({"rayClusterName": "a"}, {}, 1, True, None),  # as it was before KubeRay has looked
        ({"rayClusterName": "a"}, {"rayClusterName": "b"}, 2, True, None),
        ({"rayClusterName": "a"}, {"rayClusterName": "b", "trafficRoutedPercent": 40}, 2, True, 40),
        ({"rayClusterName": "a"}, {"rayClusterName": "b", "trafficRoutedPercent": "all"}, 2, True, None),
    ],
)
def test_traffic_in_steps(
    active: dict[str, Any], pending: dict[str, Any], observed: int, steps: bool, share: int | None
) -> None:
    status = {
        "activeServiceStatus": active,
        "pendingServiceStatus": pending,
        "observedGeneration": observed,
        "conditions": [{"type": "RollbackInProgress", "status": "True"}],
    }
    whole = document("RayService", status=status)
    whole["metadata"] = whole["metadata"] | {"generation": 2}
    found = parse_ray_service(whole)
    assert (found.steps, found.share, found.going_back) == (steps, share, True)


def test_a_gateway() -> None:
    ready = [{"type": kind, "status": "True"} for kind in ("Accepted", "Programmed")]
    status = {"conditions": ready, "addresses": [{"type": "IPAddress", "value": "10.0.0.7"}]}
    found = parse_gateway(document("Gateway", status=status))
    assert (found.address, found.problem) == ("10.0.0.7", "")
    ready[1] = {"type": "Programmed", "status": "False", "message": "no address is free"}
    found = parse_gateway(document("Gateway", status={"conditions": ready}))
    assert (found.address, found.problem) == ("", "Programmed: no address is free")
    assert parse_gateway(document("Gateway")).problem == "Accepted: nobody has looked at it"


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler"),
        ("karpenter.sh/disrupted", "Karpenter"),
        ("karpenter.sh/disruption", "Karpenter"),
        ("cloud.google.com/impending-node-termination", "Google Cloud"),
    ],
)
def test_a_node_that_is_removed_says_so_by_a_taint(key: str, who: str) -> None:
    taints = [{"key": "node.kubernetes.io/unschedulable"}, {"key": key, "effect": "NoSchedule"}]
    assert (
        parse_node({"spec": {"unschedulable": True, "taints": taints}}) == f"is about to be removed by {who}"
    )


def test_another_taint_says_nothing_of_a_node() -> None:
    assert parse_node({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}) == ""
