from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_plan, make_pod, make_profile, make_ray, make_run

from rl_operator.decide.diagnose import (
    diagnose,
)
from rl_operator.model.seen import Container, Event, Pod, Ray, World
from rl_operator.plan.effective import Effective

GPU_PLAN = make_plan(
    {
        "sampler": {"pools": ["h100"], "resources": {"accelerators": 4}, "replicas": 2},
        "learner": {"pools": ["cpu"]},
    },
    make_profile(default=True, pools=GPU_POOLS),
)
CPU_PLAN = make_plan()
SPILLING_PLAN = make_plan(
    {"sampler": {"pools": ["a", "b"]}},
    make_profile(
        default=True,
        pools=[
            {"name": "b", "nodeSelector": {"capacity": "owned"}},
            {"name": "a", "nodeSelector": {"capacity": "spot"}},
        ],
    ),
)
CLAIMING_PLAN = make_plan(
    {
        "sampler": {"pools": ["mig"], "tensorParallelSize": 2},
        "learner": {"pools": ["cpu"], "topology": {"required": "rack"}},
    },
    make_profile(
        default=True,
        pools=[
            {"name": "mig", "deviceClass": {"name": "mig.nvidia.com"}},
            {"name": "cpu", "topology": [{"name": "rack", "label": "example.com/rack"}]},
        ],
    ),
)


def waiting(role: str, reason: str, message: str = "", **container: Any) -> Pod:
    state = Container("ray", image="trainer:1", waiting=reason, waiting_message=message, **container)
    return make_pod(role, ready=False, containers=(state,))


def unschedulable(role: str, message: str) -> Pod:
    return make_pod(role, ready=False, node="", containers=(), unschedulable=message)


def event(reason: str, message: str, name: str = "sums-1-head-0", kind: str = "Pod") -> Event:
    return Event(kind, name, reason, message)


PENDING = make_pod("head", ready=False, containers=())
TABLE: list[tuple[str, list[Pod], list[Event], Ray | None, Effective, str, str, str]] = [
    (
        "too few accelerators",
        [
            unschedulable(
                "sampler", "0/3 nodes are available: 1 Insufficient cpu, 3 Insufficient nvidia.com/gpu."
            )
        ],
        [],
        None,
        GPU_PLAN,
        "Unschedulable",
        "sampler",
        "no node of pool h100 takes the pod: too little cpu, nvidia.com/gpu is free (4 asked for per pod)",
    ),
    (
        "no node of the pool",
        [
            unschedulable(
                "sampler", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            )
        ],
        [],
        None,
        GPU_PLAN,
        "Unschedulable",
        "sampler",
        "too few nodes have the pool's labels (gpu=h100)",
    ),
    (
        "no node of several pools",
        [
            unschedulable(
                "sampler", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            )
        ],
        [],
        None,
        SPILLING_PLAN,
        "Unschedulable",
        "sampler",
        "no node of pools a, b takes the pod: too few nodes have the pools' labels (capacity=spot or capacity=owned)",
    ),
    (
        "too few devices of a class",
        [unschedulable("sampler", "0/3 nodes are available: 3 cannot allocate all claims.")],
        [],
        None,
        CLAIMING_PLAN,
        "Unschedulable",
        "sampler",
        "no node of pool mig takes the pod: too few devices are free (2 of class mig.nvidia.com asked for per pod)",
    ),
    (
        "a rack that is full",
        [
            unschedulable(
                "learner",
                "0/3 nodes are available: 3 node(s) didn't match pod affinity rules, 1 Insufficient cpu.",
            )
        ],
        [],
        None,
        CLAIMING_PLAN,
        "Unschedulable",
        "learner",
        "too little cpu is free, the rack in which others of the learner are is full, or nodes lack its label "
        "example.com/rack",
    ),
    (
        "taints",
        [unschedulable("learner", "0/2 nodes are available: 2 node(s) had untolerated taint {team: b}.")],
        [],
        None,
        CPU_PLAN,
        "Unschedulable",
        "learner",
        "nodes have taints that the pool does not tolerate",
    ),
    (
        "a claim without volume",
        [unschedulable("head", "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")],
        [],
        None,
        CPU_PLAN,
        "Unschedulable",
        "head",
        "the checkpoint claim is not bound to a volume yet",
    ),
    (
        "the scheduler says something else",
        [unschedulable("head", "0/1 nodes are available: something new.")],
        [],
        None,
        CPU_PLAN,
        "Unschedulable",
        "head",
        "the scheduler found none [0/1 nodes are available: something new.]",
    ),
    (
        "a claim that is not there",
        [unschedulable("head", 'persistentvolumeclaim "ckpt" not found')],
        [],
        None,
        CPU_PLAN,
        "ClaimMissing",
        "head",
        "there is no PersistentVolumeClaim 'ckpt' in this namespace",
    ),
    (
        "a claim that is not there, by an event",
        [PENDING],
        [event("FailedScheduling", 'persistentvolumeclaim "ckpt" not found')],
        None,
        CPU_PLAN,
        "ClaimMissing",
        "head",
        "'ckpt'",
    ),
    (
        "scheduling fails, by an event",
        [PENDING],
        [event("Other", "nothing"), event("FailedScheduling", "no nodes available")],
        None,
        CPU_PLAN,
        "Unschedulable",
        "head",
        "no nodes available",
    ),
    (
        "an image",
        [waiting("learner", "ImagePullBackOff", 'Back-off pulling image "trainer:1"')],
        [],
        None,
        CPU_PLAN,
        "ImagePullFailed",
        "learner",
        "the image 'trainer:1' cannot be pulled (ImagePullBackOff: Back-off pulling image \"trainer:1\")",
    ),
    (
        "an image without words",
        [waiting("learner", "ErrImagePull")],
        [],
        None,
        CPU_PLAN,
        "ImagePullFailed",
        "learner",
        "cannot be pulled (ErrImagePull); check spec.image",
    ),
    (
        "a Secret",
        [waiting("head", "CreateContainerConfigError", 'secret "sums-status" not found')],
        [],
        None,
        CPU_PLAN,
        "ObjectMissing",
        "head",
        "Secret 'sums-status' is missing in this namespace",
    ),
    (
        "a container that cannot be made",
        [
            waiting(
                "head", "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"
            )
        ],
        [],
        None,
        CPU_PLAN,
        "ContainerNotCreated",
        "head",
        "image will run as root",
    ),
    (
        "a ConfigMap",
        [PENDING],
        [event("FailedMount", 'MountVolume.SetUp failed for volume "config": configmap "sums-1" not found')],
        None,
        CPU_PLAN,
        "ObjectMissing",
        "head",
        "ConfigMap 'sums-1' is missing",
    ),
    (
        "a volume",
        [PENDING],
        [event("FailedAttachVolume", "Multi-Attach error for volume pvc-1")],
        None,
        CPU_PLAN,
        "VolumeNotMounted",
        "head",
        "Multi-Attach error",
    ),
    (
        "memory",
        [waiting("sampler", "CrashLoopBackOff", restarts=3, ended="OOMKilled", exit_code=137)],
        [],
        None,
        CPU_PLAN,
        "OutOfMemory",
        "sampler",
        "more than its memory limit of 1536Mi; raise sampler.resources.memory",
    ),
    (
        "memory of the user's code",
        [
            make_pod(
                "sampler",
                ready=False,
                containers=(Container("ray", ready=True), Container("user-code", ended="OOMKilled")),
            )
        ],
        [],
        None,
        CPU_PLAN,
        "OutOfMemory",
        "sampler",
        "container user-code, in which code of yours runs, of pod sums-1-sampler-0 was killed because it used more than its "
        "memory limit; raise task.resources.memory",
    ),
    (
        "a crash loop",
        [waiting("learner", "CrashLoopBackOff", restarts=3, ended="Error", exit_code=1)],
        [],
        None,
        CPU_PLAN,
        "CrashLoop",
        "learner",
        "container ray of pod sums-1-learner-0 ended with exit code 1 3 times; its last lines: b | c | d",
    ),
    (
        "a quota",
        [],
        [
            event(
                "FailedToCreateHeadPod",
                'Failed to create head Pod: pods "x" is forbidden: exceeded quota: most, requested: cpu=1, used: cpu=2',
                name="sums-1-abcde",
                kind="RayCluster",
            )
        ],
        make_ray(),
        CPU_PLAN,
        "QuotaExceeded",
        "",
        "a quota of this namespace is used up: exceeded quota: most, requested: cpu=1",
    ),
    (
        "pods that are refused",
        [],
        [],
        make_ray(cluster_reason="violates PodSecurity restricted"),
        CPU_PLAN,
        "PodRefused",
        "",
        "KubeRay cannot create the pods: violates PodSecurity restricted",
    ),
    (
        "a queue",
        [],
        [],
        make_ray(held=True),
        CPU_PLAN,
        "Queued",
        "",
        "waits in its queue",
    ),
    (
        "an eviction",
        [make_pod("learner", phase="Failed", ready=False, reason="Evicted", message="low on memory")],
        [],
        None,
        CPU_PLAN,
        "Evicted",
        "learner",
        "pod sums-1-learner-0 was taken away (Evicted: low on memory)",
    ),
    (
        "a node that does not answer",
        [make_pod("learner", phase="Running", ready=False)],
        [Event("Pod", "sums-1-learner-0", "NodeNotReady", "Node is not ready")],
        None,
        CPU_PLAN,
        "NodeLost",
        "learner",
        "node node-1 of pod sums-1-learner-0 does not answer",
    ),
    (
        "a node that was given up",
        [make_pod("learner", ready=False, reason="DeletionByTaintManager")],
        [],
        None,
        CPU_PLAN,
        "NodeLost",
        "learner",
        "node node-1 of pod sums-1-learner-0 was lost (DeletionByTaintManager)",
    ),
]


@pytest.mark.parametrize(
    ("pods", "events", "ray", "plan", "reason", "role", "sentence"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_the_reason_is_found(
    pods: list[Pod],
    events: list[Event],
    ray: Ray | None,
    plan: Effective,
    reason: str,
    role: str,
    sentence: str,
) -> None:
    world = World(
        run=make_run(),
        pods=tuple(pods),
        events=tuple(events),
        rays=(ray,) if ray else (),
        log_tail={"sums-1-learner-0": "a\nb\n\nc\nd\n"},
    )
    found = diagnose(world, 1, plan)
    assert [(one.reason, one.role) for one in found] == [(reason, role)]
    assert sentence in found[0].message
    assert diagnose(replace(world, pods=world.pods[::-1]), 1, None)[0].reason == reason


def test_nothing_is_said_of_pods_that_run_or_belong_to_others() -> None:
    crash = waiting("sampler", "CrashLoopBackOff", restarts=3)
    pods = (make_pod("head"), PENDING, replace(crash, attempt=2), replace(crash, gone=True))
    assert diagnose(World(run=make_run(), pods=pods, rays=(make_ray(),)), 1, CPU_PLAN) == []


def test_a_head_whose_certificates_are_not_made_says_why_though_it_is_never_restarted() -> None:
    said = "/opt/rltrain/bin/python: No module named rl_trainer.run.certificates\n"
    first = Container("certificates", ended="Error", exit_code=1, ended_message=said)
    head = make_pod("head", ready=False, phase="Failed", containers=(first, Container("ray")))
    world = World(run=make_run(), pods=(head,), rays=(make_ray(),))
    assert [(one.reason, one.message) for one in diagnose(world, 1, CPU_PLAN)] == [
        (
            "CrashLoop",
            "head: container certificates of pod sums-1-head-0 ended with exit code 1; its last lines: "
            + said.strip(),
        )
    ]
    made = replace(first, ended="Completed", exit_code=0, ready=True)
    assert diagnose(replace(world, pods=(replace(head, containers=(made,)),)), 1, CPU_PLAN) == []


def test_what_kuberay_has_made_already_is_no_refusal() -> None:
    text = 'Failed to create RayCluster team/sums-1-abc: rayclusters.ray.io "sums-1-abc" already exists'
    event = Event("RayJob", "sums-1", "FailedToCreateRayCluster", text)
    world = World(run=make_run(), events=(event,), rays=(make_ray(),))
    assert diagnose(world, 1, CPU_PLAN) == []
    other = replace(event, message="violates PodSecurity restricted")
    assert [one.reason for one in diagnose(replace(world, events=(event, other)), 1, CPU_PLAN)] == [
        "PodRefused"
    ]


def test_the_most_telling_reason_comes_first() -> None:
    pods = (
        unschedulable("sampler", "0/1 nodes are available: 1 Insufficient cpu."),
        waiting("learner", "ImagePullBackOff"),
    )
    found = diagnose(World(run=make_run(), pods=pods), 1, CPU_PLAN)
    assert [one.reason for one in found] == ["ImagePullFailed", "Unschedulable"]


def test_restarts_without_words() -> None:
    state = Container("ray", restarts=2, ended="Error", ended_message="no module named x")
    pod = make_pod("head", ready=False, containers=(state,))
    found = diagnose(World(run=make_run(), pods=(pod,)), 1, CPU_PLAN)
    assert found[0].message.endswith("ended 2 times; its last lines: no module named x")
