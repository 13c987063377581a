"""Pods for the copies of a service that runs: as many as its spec says now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from service_worlds import CLUSTER, ServiceStory

from rl_operator.model.decision import Scale
from rl_operator.model.names import REPLICA
from rl_operator.model.seen import Pod, WorkerGroup
from rl_operator.model.service import ServiceDecision


def group(replicas: int) -> WorkerGroup:
    return WorkerGroup(CLUSTER, "cluster-uid", "ray-uid", 0, replicas, replicas, REPLICA)


def copy(name: str, ready: bool) -> Pod:
    return Pod(name, f"uid-{name}", REPLICA, attempt=0, owner="cluster-uid", ready=ready)


def look(story: ServiceStory, asked: int, *pods: Pod) -> ServiceDecision:
    """With a RayCluster that was asked for so many pods, and has these."""
    return story.look(groups={CLUSTER: group(asked)}, pods=pods, clusters={pod.name: CLUSTER for pod in pods})


@pytest.fixture
def story() -> ServiceStory:
    found = ServiceStory({"replicas": {"min": 2}})
    found.served(20)
    return found


def test_as_many_as_are_wanted_are_left_alone(story: ServiceStory) -> None:
    assert look(story, 2, copy("a", True), copy("b", True)).scale is None


def test_more_are_asked_for_at_once(story: ServiceStory) -> None:
    story.spec = {"replicas": {"min": 2, "max": 3}}
    decision = look(story, 2, copy("a", True), copy("b", True))
    assert decision.scale == Scale(group(2), 3, bound=True)
    assert ("Scaling", f"3 instead of 2 pods for copies are wanted in {CLUSTER}") in [
        (note.reason, note.message) for note in decision.notes
    ]
    assert {"op": "test", "path": "/spec/workerGroupSpecs/0/groupName", "value": REPLICA} in Scale(
        group(2), 3
    ).patch


def test_fewer_wait_for_the_copy_that_ends_and_take_its_pod(story: ServiceStory) -> None:
    story.spec = {"replicas": {"min": 1}}
    decision = look(story, 2, copy("a", True), copy("b", True))
    assert decision.scale is None, "both pods answer"
    assert [one["kind"] for one in decision.apply] == ["RayService"], "Ray Serve hears of it first"
    assert look(story, 2, copy("a", False), copy("b", True)).scale == Scale(group(2), 1, ("a",), bound=True)


def test_a_cluster_that_takes_over_begins_with_what_is_wanted(story: ServiceStory) -> None:
    story.spec = {"replicas": {"min": 3}}
    assert story.world.ray is not None
    for ray in ({"pending": "chat-other"}, {"active": "", "pending": CLUSTER}):
        story.look(ray=replace(story.world.ray, **ray))
        assert look(story, 2, copy("a", True), copy("b", True)).scale is None
