from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_documents import METADATA, TIME, document
from operator_worlds import GPU_POOLS, NOW, make_plan, make_profile

from rl_operator.model.needs import Asked, Needs
from rl_operator.model.parse import (
    parse_group,
    parse_live,
    parse_pod,
    parse_ray,
)
from rl_operator.model.seen import Live, Pod, Ray, WorkerGroup
from rl_operator.plan.limits import needs_of
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job

PORTS = [{"name": "client", "containerPort": 10001}, {"name": "status", "containerPort": 9000}]
HEAD_GROUP = {"template": {"spec": {"containers": [{"ports": PORTS}, {"ports": []}]}}}
WORKERS: list[dict[str, Any]] = [
    {"groupName": "learner", "replicas": 1, "maxReplicas": 1},
    {"groupName": "sampler", "replicas": 3, "maxReplicas": 4},
]
GROUPS = frozenset({"learner", "sampler"})
ASKED = Asked(Needs(runs=1, learners=1), Needs(samplers=1), 4)
CONDITIONS = [
    {"type": "HeadPodReady", "status": "True", "message": "ready"},
    {"type": "ReplicaFailure", "status": "False", "message": "old"},
    {"type": "ReplicaFailure", "status": "True", "message": "forbidden"},
]


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
        groups=GROUPS,
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
        groups=GROUPS,
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
