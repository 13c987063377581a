from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, NOW, make_plan, make_profile

from rl_operator.model.needs import Asked, Needs
from rl_operator.model.parse import (
    parse_event,
    parse_gateway,
    parse_group,
    parse_live,
    parse_node,
    parse_pod,
    parse_ray,
    parse_ray_service,
)
from rl_operator.model.seen import Container, Event, Live, Pod, Ray, WorkerGroup
from rl_operator.plan.limits import needs_of
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job

TIME = "2026-03-01T12:00:00Z"
METADATA: dict[str, Any] = {
    "name": "sums-2",
    "uid": "u",
    "creationTimestamp": TIME,
    "labels": {"rltrain.dev/attempt": "2", "rltrain.dev/role": "head"},
}
PORTS = [{"name": "client", "containerPort": 10001}, {"name": "status", "containerPort": 9000}]
HEAD_GROUP = {"template": {"spec": {"containers": [{"ports": PORTS}, {"ports": []}]}}}
WORKERS: list[dict[str, Any]] = [
    {"groupName": "learner", "replicas": 1, "maxReplicas": 1},
    {"groupName": "sampler", "replicas": 3, "maxReplicas": 4},
]
ASKED = Asked(Needs(runs=1, learners=1), Needs(samplers=1), 4)
CONDITIONS = [
    {"type": "HeadPodReady", "status": "True", "message": "ready"},
    {"type": "ReplicaFailure", "status": "False", "message": "old"},
    {"type": "ReplicaFailure", "status": "True", "message": "forbidden"},
]


def document(kind: str, **parts: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": METADATA, **parts}


def rayjob(**status: Any) -> Ray:
    return parse_ray(document("RayJob", status=status))


def test_a_rayjob_from_its_parts() -> None:
    status = {
        "jobStatus": "FAILED",
        "jobDeploymentStatus": "Failed",
        "reason": "AppFailed",
        "message": "exit code 1",
        "rayClusterName": "sums-2-abcde",
        "dashboardURL": "x:8265",
        "rayClusterStatus": {
            "state": "ready",
            "reason": "slow",
            "conditions": CONDITIONS,
            "head": {"serviceName": "sums-2-head"},
        },
    }
    spec = {"suspend": True, "rayClusterSpec": {"headGroupSpec": HEAD_GROUP, "workerGroupSpecs": WORKERS}}
    found = parse_ray(document("RayJob", spec=spec, status=status))
    assert found == Ray(
        kind="RayJob",
        name="sums-2",
        uid="u",
        attempt=2,
        created=NOW,
        held=True,
        job_status="FAILED",
        deployment_status="Failed",
        reason="AppFailed",
        message="exit code 1",
        cluster="sums-2-abcde",
        cluster_state="ready",
        cluster_reason="forbidden",
        head_service="sums-2-head",
        status_port=9000,
        asked=ASKED,
    )


def test_a_raycluster_from_its_parts() -> None:
    # Reason and message of a job are none of a cluster's.
    status = {
        "state": "ready",
        "reason": "slow",
        "message": "m",
        "rayClusterName": "x",
        "conditions": CONDITIONS[:2],
        "head": {"serviceName": "s"},
    }
    job = {"kind": "RayJob", "uid": "job", "controller": True}
    metadata = METADATA | {"ownerReferences": [{"kind": "RayJob", "uid": "friend"}, job]}
    spec = {"headGroupSpec": HEAD_GROUP, "workerGroupSpecs": WORKERS}
    found = parse_ray(document("RayCluster", metadata=metadata, spec=spec, status=status))
    assert found == Ray(
        kind="RayCluster",
        name="sums-2",
        uid="u",
        attempt=2,
        created=NOW,
        cluster="sums-2",
        cluster_uid="u",
        cluster_state="ready",
        cluster_reason="slow",
        head_service="s",
        status_port=9000,
        asked=ASKED,
        samplers=WorkerGroup("sums-2", "u", "job", 1, 3, 4),
    )


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
def test_what_an_attempt_began_with(render: Any) -> None:
    # What an attempt begins with is the learner's image, also where the head is on another pool with another one.
    plan = make_plan({"learner": {"pools": ["h100"]}}, make_profile(default=True, pools=GPU_POOLS))
    hashes = {"spec_hash": plan.digest, "profile_hash": plan.profile_digest}
    assert parse_ray(render(plan, 1)).began == {"image": plan.spec.image, **hashes}


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
def test_what_an_attempt_takes(render: Any) -> None:
    plan = make_plan(
        {"sampler": {"replicas": 3, "tensorParallelSize": 2}}, make_profile(pools=GPU_POOLS, default=True)
    )
    ray = parse_ray(render(plan, 1))
    assert ray.profile == "shared"
    taken, all_of_it = ray.asked.with_samplers(ray.asked.most), needs_of(plan.roles)
    assert replace(taken, storage=0) == replace(all_of_it, storage=0)
    assert replace(taken, storage=0) == Needs(runs=1, samplers=3, learners=1, accelerators=7)


def test_the_pods_of_a_sampler_are_counted() -> None:
    several = [WORKERS[0], WORKERS[1] | {"numOfHosts": 2}]
    spec = {"rayClusterSpec": {"headGroupSpec": HEAD_GROUP, "workerGroupSpecs": several}}
    assert parse_ray(document("RayJob", spec=spec)).asked.most == 8
    found = parse_group({"metadata": METADATA, "spec": {"workerGroupSpecs": several}})
    assert found is not None
    assert (found.replicas, found.most, found.hosts) == (3, 4, 2)


def test_claimed_devices_are_accelerators_like_others() -> None:
    pools = [{"name": "gpus", "deviceClass": {"name": "gpu.nvidia.com"}}, {"name": "cpu"}]
    plan = make_plan(
        {"sampler": {"replicas": 3, "tensorParallelSize": 2}}, make_profile(pools=pools, default=True)
    )
    asked = parse_ray(ray_job(plan, 1)).asked
    assert asked.with_samplers(asked.most).accelerators == needs_of(plan.roles).accelerators == 7


def test_the_disk_of_all_its_containers_is_taken() -> None:
    plan = make_plan({"task": {"isolation": "strict"}})
    ray = parse_ray(ray_job(plan, 1))
    assert ray.asked.with_samplers(ray.asked.most) == needs_of(plan.roles)


@pytest.mark.parametrize(
    ("gpus", "disk", "expected"),
    [
        ("2", "10Gi", Needs(runs=1, accelerators=2, storage=10 * 2**30)),
        ("many", "lots", Needs(runs=1)),
        (None, None, Needs(runs=1)),
        ("9" * 30, "1e", Needs(runs=1)),
    ],
)
def test_what_a_head_takes_that_somebody_has_changed(gpus: Any, disk: Any, expected: Needs) -> None:
    pod = {"containers": [{"resources": {"limits": {"ephemeral-storage": disk}}}]}
    head = {"rayStartParams": {"num-gpus": gpus}, "template": {"spec": pod}}
    found = parse_ray(document("RayJob", spec={"rayClusterSpec": {"headGroupSpec": head}}))
    assert found.asked.with_samplers(found.asked.most) == expected


@pytest.mark.parametrize("nothing", [{}, {"spec": None, "status": None}])
def test_what_is_known_of_an_object_that_says_nothing(nothing: dict[str, Any]) -> None:
    bare = {"metadata": {"name": "x"}} | nothing
    assert parse_ray({"kind": "RayJob"} | bare) == Ray("RayJob", "x", "", 0)
    cluster = Ray("RayCluster", "x", "", 0, cluster="x", head_service="x-head-svc")
    assert parse_ray({"kind": "RayCluster"} | bare) == cluster
    assert parse_pod(bare) == Pod("x", "", "", 0)
    assert parse_live(bare) == Live("", "", {})
    assert parse_group(bare) is None


def test_lists_that_are_null_are_empty() -> None:
    metadata = METADATA | {"ownerReferences": None, "labels": None, "annotations": None}
    status = {"conditions": None, "head": None, "initContainerStatuses": None, "containerStatuses": None}
    spec = {"workerGroupSpecs": None, "containers": None, "headGroupSpec": {"template": {"spec": None}}}
    nulls = {"metadata": metadata, "spec": spec, "status": status}
    ray = parse_ray({"kind": "RayCluster", **nulls})
    assert (ray.attempt, ray.cluster_reason, ray.samplers, ray.status_port) == (0, "", None, None)
    assert (parse_pod(nulls).containers, parse_pod(nulls).memory_limit) == ((), "")
    group = parse_group(nulls | {"spec": {"workerGroupSpecs": [{"groupName": "sampler"}]}})
    assert group == WorkerGroup("sums-2", "u", "", 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "attempt"),
    [("12", 12), ("", 0), ("x", 0), ("-1", 0), ("²", 0), ("9" * 6, 999_999), ("9" * 7, 0), ("9" * 63, 0)],
)
def test_the_attempt_of_a_label(text: str, attempt: int) -> None:
    labels = {"labels": {"rltrain.dev/attempt": text}}
    assert parse_pod({"metadata": METADATA | labels}).attempt == attempt


def test_a_ray_that_is_being_deleted() -> None:
    going = document("RayJob", metadata=METADATA | {"deletionTimestamp": TIME}, spec={"suspend": False})
    assert (parse_ray(going).deleting, parse_ray(going).held) == (True, False)


def test_the_service_of_a_head_has_its_cluster_in_its_name_until_it_is_known() -> None:
    assert rayjob(rayClusterName="sums-2-abcde").head_service == "sums-2-abcde-head-svc"
    assert rayjob(rayClusterStatus={"reason": "slow"}).cluster_reason == "slow"


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
def test_the_port_that_a_driver_began_with(render: Any) -> None:
    assert parse_ray(render(make_plan({"server": {"port": 9000}}), 1)).status_port == 9000


@pytest.mark.parametrize(
    ("owners", "owner"),
    [
        ([{"kind": "RayCluster", "uid": "c", "controller": True}], "c"),
        ([{"kind": "RayCluster", "uid": "c"}], ""),
        ([{"kind": "ReplicaSet", "uid": "r", "controller": True}], ""),
        ([], ""),
    ],
)
def test_a_pod_belongs_to_the_ray_cluster_that_controls_it(owners: list[dict[str, Any]], owner: str) -> None:
    pod = document("Pod", metadata=METADATA | {"ownerReferences": owners}, status={"podIP": "10.0.0.7"})
    assert (parse_pod(pod).owner, parse_pod(pod).ip) == (owner, "10.0.0.7")


def test_the_address_of_a_node_is_not_that_of_a_pod() -> None:
    pod = document("Pod", spec={"hostNetwork": True}, status={"podIP": "192.0.2.1", "hostIP": "192.0.2.1"})
    assert parse_pod(pod).ip == ""


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
def test_the_secret_that_a_driver_of_an_earlier_operator_began_with(render: Any) -> None:
    document = render(make_plan(), 3)
    assert parse_ray(document).secret == "", "a file holds the token now"
    cluster = document["spec"].get("rayClusterSpec") or document["spec"]
    (container,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "sums-status", "key": "token"}}
    container["env"].append({"name": "RLTRAIN_STATUS_TOKEN", "valueFrom": reference})
    assert parse_ray(document).secret == "sums-status"


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
