"""Nodes that are drained under a run: it is moved, with a checkpoint first, as a preemption and not as a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    Story,
    condition,
    deleted,
    group,
    kinds,
    make_pod,
    make_profile,
    make_ray,
    make_reading,
    running_ray,
    training,
    with_group,
)

from rl_operator.model.decision import Decision
from rl_operator.model.seen import Pod

ELASTIC: dict[str, Any] = {"sampler": {"replicas": 2, "minReplicas": 1}}
CORDONED = {"node-1": "is cordoned"}
ELSEWHERE: tuple[Pod, ...] = tuple(make_pod(role, node="node-2") for role in ("head", "learner", "sampler"))


def drained(story: Story, **changes: Any) -> Decision:
    """The node of head and learner is cordoned."""
    return story.look(cordoned=CORDONED, **changes)


def moved(story: Story) -> Decision:
    """From the cordon to the run that trains elsewhere."""
    drained(story)
    story.answered("done")
    story.look(rays=(), pods=())
    story.look()
    return story.look(
        rays=(running_ray(),), pods=ELSEWHERE, reading=make_reading(time=story.now), cordoned={}, ask=None
    )


def test_a_run_on_a_cordoned_node_saves_and_goes_on_elsewhere_in_the_same_attempt() -> None:
    story = training(ELASTIC)
    decision = drained(story)
    assert decision.ask is not None, "a checkpoint first"
    assert (decision.delete, decision.status.phase) == ((), "Stopping")
    (eviction,) = decision.status.evictions
    assert (eviction.reason, eviction.attempt, eviction.step) == ("NodeDrained", 1, 7)
    assert eviction.message == "node node-1 is cordoned: head and learner must go elsewhere"

    decision = story.answered("done")
    assert deleted(decision) == [("RayJob", "sums-1")]
    assert decision.status.evictions[0].checkpoint == "written"

    decision = story.look(rays=(), reading=None)
    assert kinds(decision) == [], "its pods still stop: who begins now writes where they do"
    story.wait(4)
    decision = story.look(pods=())
    (eviction,) = decision.status.evictions
    assert eviction.seconds_to_release == 4
    found = condition(decision, "ClusterReady")
    assert found is not None
    assert found[1:] == (
        "Evicted",
        "node node-1 is cordoned: head and learner must go elsewhere; the run goes on from step 5 on other nodes",
    )
    assert condition(decision, "Admitted") is None, "no queue has to do with it"

    decision = story.look()
    assert "RayJob" in kinds(decision)
    (attempt,) = decision.status.attempts
    assert (attempt.preemptions, attempt.end_time) == (1, None)
    assert decision.status.evictions[0].resumed_step == 5


def test_the_pods_that_come_are_a_new_application_of_yunikorn() -> None:
    story = Story(ELASTIC, [make_profile(default=True, gang={"scheduler": "yunikorn"})])
    story.begin()
    story.look(rays=(running_ray(),), pods=ELSEWHERE, reading=make_reading())
    story.look(cordoned={"node-2": "is cordoned"})
    story.answered("done")
    story.look(rays=(), pods=())
    job = story.look().create[-1]
    assert job["metadata"]["labels"]["yunikorn.apache.org/app-id"] == "team-a.sums-1-12345678-1"


def test_a_driver_that_never_answers_is_waited_for_no_longer_than_the_grace() -> None:
    story = training(ELASTIC | {"scheduling": {"preemptionGracePeriod": "30s"}})
    assert drained(story).ask == 30
    story.wait(29)
    assert deleted(story.look()) == []
    story.wait(1)
    decision = story.look()
    assert deleted(decision) == [("RayJob", "sums-1")]
    assert decision.status.evictions[0].checkpoint == "late"


def test_a_cordon_that_is_taken_back_before_the_checkpoint_moves_nothing() -> None:
    story = training(ELASTIC)
    drained(story)
    decision = story.look(cordoned={})
    assert (decision.ask, decision.delete, decision.status.evictions) == (None, (), [])
    assert (decision.status.phase, decision.status.checkpoint_request) == ("Training", None)
    assert condition(decision, "Training") == condition(training(ELASTIC).look(), "Training")
    assert drained(story).ask is not None, "the next one is as good as the first"


def test_pods_that_go_already_are_not_waited_for_though_the_node_is_gone() -> None:
    story = training(ELASTIC)
    drained(story)
    going = tuple(make_pod(role, deleting=story.now) for role in ("head", "learner"))
    decision = story.look(pods=going, cordoned={})
    assert [one.reason for one in decision.status.evictions] == ["NodeDrained"]


def test_a_run_that_stops_already_moves_though_the_cordon_is_taken_back() -> None:
    story = training(ELASTIC)
    drained(story)
    assert deleted(story.answered("done")) == [("RayJob", "sums-1")]
    decision = story.look(rays=(running_ray(deleting=True),), cordoned={})
    assert len(decision.status.evictions) == 1


def test_a_node_that_is_cordoned_again_and_again_costs_a_run_no_more() -> None:
    story = training(ELASTIC)
    moved(story)
    again = {"node-2": "is cordoned"}
    story.wait(60)
    decision = story.look(cordoned=again)
    assert (decision.ask, len(decision.status.evictions)) == (None, 1)
    story.wait(60)
    decision = story.look()
    assert (decision.ask is not None, len(decision.status.evictions)) == (True, 2)


def test_where_there_is_no_other_node_the_pods_wait_and_say_so() -> None:
    story = training(ELASTIC)
    moved(story)
    full = "0/1 nodes are available: 1 node(s) were unschedulable."
    waiting = tuple(
        replace(pod, node="", ready=False, phase="Pending", unschedulable=full) for pod in ELSEWHERE
    )
    decision = story.look(rays=(make_ray(),), pods=waiting, reading=None, cordoned={})
    found = condition(decision, "ClusterReady")
    assert found is not None
    assert full.removesuffix(".") in found[2]
    assert len(decision.status.evictions) == 1


def test_a_run_that_does_not_train_yet_has_nothing_to_save() -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(make_ray(),), pods=(make_pod("head"),), cordoned=CORDONED)
    assert (decision.delete, decision.requeue) == ((), 0.0), "it is written down first"
    decision = story.look()
    assert deleted(decision) == [("RayJob", "sums-1")]
    assert decision.status.evictions[0].checkpoint == "none"


@pytest.mark.parametrize(
    "pods",
    [
        (make_pod("head", node="node-2"), make_pod("learner", node="node-2"), make_pod("sampler")),
        tuple(make_pod(role, stays=True) for role in ("head", "learner", "sampler")),
        tuple(make_pod(role, node="node-3") for role in ("head", "learner", "sampler")),
    ],
    ids=["a sampler alone", "pods that tolerate it", "another node"],
)
def test_others_do_not_move_the_run(pods: tuple[Pod, ...]) -> None:
    decision = training(ELASTIC).look(pods=pods, cordoned=CORDONED)
    assert (decision.ask, decision.delete, decision.status.evictions) == (None, (), [])


def test_a_pod_that_tolerates_a_cordon_leaves_a_node_that_is_removed() -> None:
    story = training(ELASTIC)
    staying = tuple(make_pod(role, stays=True) for role in ("head", "learner", "sampler"))
    decision = story.look(pods=staying, cordoned={"node-1": "is about to be removed by Karpenter"})
    assert decision.ask is not None
    assert [one.message for one in decision.status.evictions] == [
        "node node-1 is about to be removed by Karpenter: head and learner must go elsewhere"
    ]


REMOVED = {"node-1": "is about to be removed by Karpenter"}


def by_hand(**changes: Any) -> Decision:
    """A cluster in which somebody may work."""
    story = Story({"workload": "Cluster"})
    story.look()
    cluster = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready", cluster="sums-1")
    return story.look(rays=(cluster,), pods=tuple(map(make_pod, ("head", "learner", "sampler"))), **changes)


def test_a_cluster_in_which_somebody_works_by_hand_is_not_stopped_for_a_cordon() -> None:
    decision = by_hand(cordoned=CORDONED)
    assert (decision.delete, decision.status.evictions) == ((), [])
    assert [one.reason for one in by_hand(cordoned=REMOVED).status.evictions] == ["NodeDrained"]
    assert by_hand(cordoned=CORDONED, reading=make_reading()).ask is not None, "a driver trains in it"


def test_a_run_that_could_not_begin_again_is_not_stopped_for_a_cordon() -> None:
    story = training(ELASTIC)
    story.profiles = [make_profile(default=True, pools=[])]
    decision = drained(story)
    assert (decision.ask, decision.delete, decision.status.evictions) == (None, (), [])
    assert story.look(cordoned=REMOVED).ask is not None


def samplers(*places: str, ready: bool = True) -> tuple[Pod, ...]:
    """Head and learner on a node that stays, and samplers on these."""
    here = (make_pod("head", node="node-2"), make_pod("learner", node="node-2"))
    return (
        *here,
        *(make_pod("sampler", index=i, node=node, ready=ready) for i, node in enumerate(places)),
    )


def test_samplers_on_a_cordoned_node_are_replaced_and_the_learner_trains_on() -> None:
    story = training(ELASTIC)
    decision = story.look(rays=(with_group(group(2)),), pods=samplers("node-1", "node-2"), cordoned=CORDONED)
    assert decision.scale is not None
    assert (decision.scale.replicas, decision.scale.remove) == (2, ("sums-1-sampler-0",))
    assert decision.status.evictions == []
    assert [note.message for note in decision.notes if note.reason == "Scaling"] == [
        "samplers sums-1-sampler-0 go from nodes that are drained, and others come for them"
    ]


def test_the_fewest_samplers_that_a_run_needs_stay_until_others_work() -> None:
    story = training(ELASTIC)
    decision = story.look(rays=(with_group(group(2)),), pods=samplers("node-1", "node-1"), cordoned=CORDONED)
    assert decision.scale is not None
    assert len(decision.scale.remove) == 1
    decision = story.look(pods=samplers("node-1", "node-2", ready=False))
    assert decision.scale is not None
    assert decision.scale.remove == ("sums-1-sampler-0",), "it does no work"
