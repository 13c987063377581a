from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import NOW, make_plan

from rl_operator.model.parse import parse_event, parse_live, parse_pod, parse_ray
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job


def document(kind: str, **parts: Any) -> dict[str, Any]:
    labels = {"rltrain.dev/attempt": "2", "rltrain.dev/role": "head"}
    return {"kind": kind, "metadata": {"name": "sums-2", "uid": "u", "labels": labels}, **parts}


def test_a_rayjob_from_its_parts() -> None:
    status = {
        "jobStatus": "RUNNING",
        "jobDeploymentStatus": "Running",
        "rayClusterName": "sums-2-abcde",
        "dashboardURL": "x:8265",
        "rayClusterStatus": {
            "state": "ready",
            "conditions": [
                {"type": "HeadPodReady", "status": "True"},
                {"type": "ReplicaFailure", "status": "True", "message": "no"},
            ],
        },
    }
    ray = parse_ray(document("RayJob", spec={"suspend": True}, status=status))
    assert (ray.kind, ray.attempt, ray.held, ray.submitted) == ("RayJob", 2, True, True)
    assert (ray.head_service, ray.cluster_state, ray.cluster_reason) == (
        "sums-2-abcde-head-svc",
        "ready",
        "no",
    )
    bare = parse_ray({"kind": "RayJob", "metadata": {"name": "x"}})
    assert (bare.attempt, bare.submitted, bare.head_service, bare.status_port) == (0, False, "", None)


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
def test_the_port_that_a_driver_began_with(render: Any) -> None:
    assert parse_ray(render(make_plan({"server": {"port": 9000}}), 1)).status_port == 9000


def test_a_raycluster_from_its_parts() -> None:
    ray = parse_ray(document("RayCluster", status={"state": "ready", "head": {"serviceName": "s"}}))
    assert (ray.kind, ray.cluster, ray.head_service, ray.cluster_state) == (
        "RayCluster",
        "sums-2",
        "s",
        "ready",
    )


def test_a_pod_from_its_parts() -> None:
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"},
        ],
        "initContainerStatuses": [
            {"name": "wait-gcs-ready", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
        "containerStatuses": [
            {
                "name": "ray",
                "image": "i",
                "restartCount": 1,
                "state": {"running": {}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }
        ],
    }
    spec = {"nodeName": "n", "containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}
    pod = parse_pod(document("Pod", spec=spec, status=status))
    assert (pod.role, pod.attempt, pod.ready, pod.unschedulable) == ("head", 2, True, "full")
    assert (pod.memory_limit, pod.node, pod.gone) == ("1Gi", "n", False)
    assert [one.waiting for one in pod.containers] == ["PodInitializing", ""]
    assert (pod.containers[1].ended, pod.containers[1].exit_code, pod.containers[1].restarts) == (
        "OOMKilled",
        137,
        1,
    )
    assert parse_pod({"kind": "Pod", "metadata": {"name": "x"}}, gone=True).gone


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"reason": "Evicted"}, "Evicted"),
        ({}, "DeletionByTaintManager"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "Any"}]}, ""),
    ],
)
def test_a_pod_that_is_taken_away_says_why(status: dict[str, Any], reason: str) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    pod = parse_pod(document("Pod", status={"conditions": [target]} | status))
    assert pod.reason == reason


def test_events_and_objects_from_their_parts() -> None:
    about = {"kind": "Pod", "name": "p"}
    event = parse_event(
        {"involvedObject": about, "reason": "R", "message": "M", "lastTimestamp": "2026-03-01T12:00:00Z"}
    )
    assert (event.kind, event.name, event.reason, event.time) == ("Pod", "p", "R", NOW)
    assert parse_event({}).time is None
    live = parse_live(
        {"metadata": {"uid": "u", "annotations": {"rltrain.dev/manifest": "h"}}, "spec": {"a": 1}}
    )
    assert (live.uid, live.hash, live.spec) == ("u", "h", {"a": 1})
