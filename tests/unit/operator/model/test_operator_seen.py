from __future__ import annotations

from operator_worlds import NOW, make_pod, make_ray, make_run, running_ray

from rl_api.progress import RunStatus
from rl_operator.model.seen import World


def test_what_a_world_knows_of_its_run() -> None:
    world = World(run=make_run({"suspend": True}, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert (world.wants_suspend, world.generation, world.deleted) == (True, 1, NOW)
    assert (world.metadata["name"], world.spec["suspend"]) == ("sums", True)
    assert (world.nulls, world.late_nulls) == ([], ())
    told = World(run=make_run() | {"nulls": ["image"], "lateNulls": ["seed"]})
    assert (told.nulls, told.late_nulls) == (["image"], ["seed"])
    bare = World(run={"metadata": {}, "spec": 5})
    assert (bare.spec, bare.wants_suspend, bare.generation, bare.deleted) == ({}, False, 0, None)


def test_what_is_taken_for_granted_of_a_cluster_until_it_is_known() -> None:
    world = World(run=make_run())
    assert (world.kuberay, world.kueue, world.claims, world.live) == (True, True, {}, {})


def test_the_head_of_an_attempt_is_one_that_stays() -> None:
    going = make_pod("head", index=1, deleting=NOW)
    other, gone = make_pod("head", attempt=2), make_pod("head", index=2, gone=True)
    young, head = make_pod("head", index=3, ready=False), make_pod("head")
    world = World(run=make_run(), pods=(going, other, gone, young, head, make_pod("sampler")))
    assert world.head(1) == head
    assert World(run=make_run(), pods=(going, other, gone)).head(1) is None
    assert [pod.name for pod in world.pods_of(1)] == [
        "sums-1-head-1",
        "sums-1-head-3",
        "sums-1-head-0",
        "sums-1-sampler-0",
    ]


def test_when_a_ray_cluster_answers_and_works() -> None:
    assert not make_ray().answers
    assert (running_ray().answers, running_ray().at_work) == (True, True)
    cluster = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready")
    assert (cluster.submitted, cluster.answers, cluster.at_work) == (False, True, True)
    early = make_ray(cluster_state="ready")
    assert (early.answers, early.at_work) == (True, False)
    world = World(run=make_run(), rays=(cluster, make_ray(2)))
    assert world.ray(2) == make_ray(2)
    assert world.ray(3) is None


def test_what_would_end_an_attempt_is_worth_another_look() -> None:
    assert World(run=make_run()).unsure(1, RunStatus()), "no RayJob"
    assert World(run=make_run(), rays=(running_ray(),)).unsure(1, RunStatus()), "no head"
    assert not World(run=make_run(), rays=(running_ray(),), pods=(make_pod("head"),)).unsure(1, RunStatus())
    assert not World(run=make_run(), rays=(make_ray(),)).unsure(1, RunStatus()), "it has not begun"
