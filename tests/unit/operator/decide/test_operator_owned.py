"""Whose a pod is says who controls it, and never a label: anybody may write those."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    KEY,
    NOW,
    SETTINGS,
    Story,
    all_pods,
    condition,
    make_pod,
    make_ray,
    make_run,
    running_ray,
    stored,
)

from rl_operator.decide.look import attributed
from rl_operator.kube.cache import Store
from rl_operator.model.decision import Pull
from rl_operator.model.seen import Event, Pod, World
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.memory import Memory

UID = "12345678-90ab"
BORN = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("pod", "attempts"),
    [
        (make_pod("head"), [1]),
        (make_pod("head", owner=""), []),
        (make_pod("head", owner="cluster-of-somebody"), [0]),
        (make_pod("head", attempt=2, owner="cluster-1"), [2]),
        (make_pod("head", attempt=2, owner="cluster-2"), [2]),
        (make_pod("head", created=BORN - timedelta(seconds=1)), [0]),
        (make_pod("head", created=BORN), [1]),
    ],
    ids=[
        "its own",
        "forged",
        "of another cluster",
        "label",
        "before its RayJob is seen",
        "earlier",
        "born with",
    ],
)
def test_whose_a_pod_is(pod: Pod, attempts: list[int]) -> None:
    assert [one.attempt for one in attributed([pod], [running_ray()], BORN)] == attempts


def test_a_run_that_nobody_knows_the_birth_of() -> None:
    assert attributed([make_pod("head", created=NOW)], [], None) == (make_pod("head", created=NOW),)


def document(name: str, owner: str, ip: str, version: int) -> dict[str, Any]:
    """A head pod, controlled by the RayCluster with uid `owner`, or by nobody."""
    owners = [{"kind": "RayCluster", "uid": owner, "controller": True}] if owner else []
    labels = {"rltrain.dev/run": "sums", "rltrain.dev/attempt": "1", "rltrain.dev/role": "head"}
    ready = [{"type": "Ready", "status": "True"}]
    return stored(
        "Pod",
        name,
        version,
        f"uid-{name}",
        metadata={"labels": labels, "ownerReferences": owners},
        status={"phase": "Running", "podIP": ip, "conditions": ready},
    )


def seen(*documents: dict[str, Any], job: str = "job") -> World:
    """What is seen of a run whose RayCluster is controlled by the RayJob with the uid `job`; its own has uid `job`."""
    store = Store()
    run_owner = {"kind": "RLTrainingRun", "uid": UID, "controller": True}
    job_owner = {"kind": "RayJob", "uid": job, "controller": True}
    status = {"rayClusterName": "sums-1-x", "jobDeploymentStatus": "Running"}
    store.put(stored("RayJob", "sums-1", 1, "job", metadata={"ownerReferences": [run_owner]}, status=status))
    store.put(stored("RayCluster", "sums-1-x", 2, "ray", metadata={"ownerReferences": [job_owner]}))
    for one in documents:
        store.put(one)
    run: Any = make_run()
    return Cluster(None, store, SETTINGS).known(KEY, run, Memory(UID))  # type: ignore[arg-type]


OWN = document("own", "ray", "10.0.0.7", 3)
FORGED = document("zzz-forged", "", "10.6.6.6", 4)
STRANGE = document("zzz-strange", "of-somebody", "10.6.6.7", 5)


def test_the_head_is_the_one_that_the_chain_of_owners_leads_to() -> None:
    world = seen(FORGED, STRANGE, OWN)
    assert world.rays[0].cluster_uid == "ray"
    head = world.head(1)
    assert head is not None
    assert (head.name, head.ip) == ("own", "10.0.0.7")
    assert {pod.name: pod.attempt for pod in world.pods} == {"own": 1, "zzz-strange": 0}


def test_a_ray_cluster_that_the_run_does_not_own_leads_nowhere() -> None:
    """A RayCluster of the name that the RayJob says, but of somebody else's RayJob."""
    assert seen(OWN, job="another").rays[0].cluster_uid == ""


def test_the_driver_is_asked_at_the_address_of_the_owned_head() -> None:
    story = Story()
    story.begin()
    own, forged = (
        make_pod("head"),
        make_pod("head", attempt=0, name="zzz", owner="of-somebody", ip="10.6.6.6"),
    )
    ray = running_ray()
    assert story.look(rays=(ray,), pods=(own, forged)).pull == Pull(1, "10.0.0.7", 8090)
    assert story.look(pods=(replace(own, ip=""),)).pull is None
    assert story.look(pods=(own,), rays=(replace(ray, cluster_uid=""),)).pull is None
    assert story.look(pods=(replace(own, owner=""),), rays=(replace(ray, cluster_uid=""),)).pull is None
    going, new = replace(own, deleting=NOW), make_pod("head", index=1, ip="10.0.0.8")
    assert story.look(pods=(going, new), rays=(ray,)).pull == Pull(1, "10.0.0.8", 8090)


def test_a_pod_with_the_labels_of_a_head_neither_keeps_an_attempt_alive_nor_the_next_one_waiting() -> None:
    lost = seen(FORGED)
    story = Story()
    story.begin()
    story.train()
    decision = story.look(rays=lost.rays, pods=lost.pods)
    assert decision.status.attempts[0].reason == "HeadLost: the head pod is gone, and the driver with it"
    story.wait(10)
    decision = story.look(rays=())
    assert [attempt.number for attempt in decision.status.attempts] == [1, 2]


def test_a_service_of_somebodys_under_the_name_of_the_heads_is_said() -> None:
    text = 'Failed creating service team-a/sums-1-abcde-head-svc, services "sums-1-abcde-head-svc" already exists'
    story = Story()
    story.begin()
    taken = Event("RayCluster", "sums-1-abcde", "FailedToCreateService", text)
    decision = story.look(rays=(make_ray(),), pods=(), events=(taken,))
    assert condition(decision, "ClusterReady") == (
        "False",
        "NameTaken",
        "KubeRay needs the name sums-1-abcde-head-svc for the Service of the head, and there is one of somebody's; "
        "delete that",
    )
    # KubeRay tries again what it has done already, when its own watch lags: then there are pods.
    found = condition(story.look(pods=all_pods()[:1]), "ClusterReady")
    assert found is not None
    assert found[1] == "Starting"


def test_a_service_that_leads_elsewhere_is_what_is_thought_of_where_the_job_does_not_start() -> None:
    story = Story()
    story.begin()
    ready = make_ray(cluster_state="ready")
    story.look(rays=(ready,), pods=all_pods())
    story.wait(60)
    found = condition(story.look(), "Training")
    assert found == ("False", "Starting", "the pods are starting")
    story.wait(1)
    assert condition(story.look(), "Training") == (
        "False",
        "NotSubmitted",
        "all pods are ready, and KubeRay does not start the job in them: its operator must reach the head by Service "
        "sums-1-abcde-head-svc, and that must be the one that KubeRay made",
    )
    assert condition(story.look(rays=(running_ray(),)), "Training") == (
        "False",
        "Starting",
        "the driver has not answered yet",
    )
