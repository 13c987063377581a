"""The beginning of an attempt: what it needs, what it says, and when it is looked at again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    CRASH,
    NOW,
    Story,
    all_pods,
    condition,
    deleted,
    make_pod,
    make_profile,
    make_ray,
    make_run,
    running_ray,
)

from rl_operator.decide.reconcile import reconcile
from rl_operator.model.decision import Decision
from rl_operator.model.seen import Claim, World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import plan

FINALIZERS = {"finalizers": ["rltrain.dev/checkpoint"]}


def look(run: dict[str, Any], **seen: Any) -> Decision:
    return reconcile(World(run=run, **seen), NOW, plan(run, [], Settings()))


def test_when_a_run_is_looked_at_again() -> None:
    story = Story()
    assert story.begin().requeue == 2.0, "something is about to happen"
    assert story.look(rays=(make_ray(),), pods=all_pods()[:1]).requeue == 5.0
    assert story.train().requeue == 20.0
    assert story.look(rays=(running_ray(deleting=True),)).requeue == 5.0
    assert look(make_run({"sampler": {"replicas": 0}})).requeue == 60.0
    assert look(make_run() | {"status": {"phase": "Dreaming"}}).requeue == 300.0
    assert look(make_run({"suspend": True})).requeue == 300.0
    assert look(make_run(), kuberay=False).requeue == 5.0
    assert look(make_run(), rays=(make_ray(held=True),)).requeue == 20.0


def test_a_run_that_cannot_begin_is_not_kept() -> None:
    spec = {"sampler": {"replicas": 0}}
    assert look(make_run(spec)).finalizer is None
    assert look(make_run(spec, **FINALIZERS)).finalizer is False
    assert look(make_run()).finalizer is True
    assert look(make_run(**FINALIZERS)).finalizer is None


def test_nulls_are_those_that_the_run_began_with() -> None:
    run = make_run({"checkpoint": None}) | {"nulls": ["checkpoint"]}
    assert look(run).status.nulls == ["checkpoint"]
    assert look(run, kuberay=False).status.nulls is None, "it has not begun"
    story = Story({"checkpoint": None})
    story.run = story.run | {"nulls": ["checkpoint"]}
    story.begin()
    story.fail(CRASH)
    story.wait(10)
    story.run = story.run | {"nulls": ["task"]}
    decision = story.look(rays=())
    assert (len(decision.status.attempts), decision.status.nulls) == (2, ["checkpoint"])


def test_a_null_that_came_too_late_is_said() -> None:
    accepted = condition(look(make_run() | {"lateNulls": ["seed", "image"]}), "Accepted")
    sentence = "; null came too late for seed, image: that cannot be changed on a run that exists"
    assert accepted == ("True", "Valid", f"the run can be carried out{sentence}")


def test_each_attempt_has_a_token_of_its_own_that_the_same_key_gives_again() -> None:
    def secret(decision: Decision) -> dict[str, Any]:
        return next(one for one in decision.create if one["kind"] == "Secret")

    first = secret(look(make_run(), key=b"key"))
    assert (first["metadata"]["name"], first["immutable"]) == ("sums-1-12345678", True)
    assert secret(look(make_run(), key=b"key")) == first
    assert secret(look(make_run(), key=b"another"))["data"] != first["data"]
    story = Story()
    story.begin()
    story.fail(CRASH)
    story.wait(10)
    second = secret(story.look(rays=()))
    assert second["metadata"]["name"] == "sums-2-12345678"
    assert second["data"] != secret(look(make_run()))["data"]


NO_CLAIM = {"ckpt": Claim(False)}


@pytest.mark.parametrize(
    ("spec", "seen", "reason"),
    [
        ({}, {"kuberay": False, "claims": NO_CLAIM}, "KubeRayMissing"),
        ({}, {"claims": NO_CLAIM, "refusal": "no"}, "ClaimMissing"),
        ({}, {"claims": {}}, "Starting"),
        ({"checkpoint": None}, {"claims": NO_CLAIM}, "Starting"),
        ({}, {"refusal": "no"}, "ObjectRefused"),
        ({}, {"refusal": "a quota"}, "QuotaExceeded"),
    ],
)
def test_what_keeps_a_run_from_its_beginning(spec: dict[str, Any], seen: dict[str, Any], reason: str) -> None:
    decision = look(make_run(spec), **seen)
    found = condition(decision, "ClusterReady")
    assert found is not None
    assert found[:2] == ("False", reason)
    assert bool(decision.create) is (reason == "Starting")


@pytest.mark.parametrize(("pool", "reason"), [("gpus", "DRAMissing"), ("cpu", "Starting")])
def test_devices_are_claimed_only_where_the_cluster_can(pool: str, reason: str) -> None:
    pools = [{"name": "gpus", "deviceClass": {"name": "gpu.nvidia.com"}}, {"name": "cpu"}]
    run = make_run({"sampler": {"pools": [pool]}, "learner": {"pools": ["cpu"]}})
    planned = plan(run, [make_profile(default=True, pools=pools)], Settings())
    found = condition(reconcile(World(run=run, dra=False), NOW, planned), "ClusterReady")
    assert found is not None
    assert found[1] == reason
    if reason == "DRAMissing":
        assert found[2] == (
            "this cluster has no resource.k8s.io/v1 (Kubernetes 1.34), by which pods of the sampler claim devices of "
            "class gpu.nvidia.com in pool gpus: name pools with an acceleratorResource"
        )
    begun = condition(reconcile(World(run=run), NOW, planned), "ClusterReady")
    assert begun is not None
    assert begun[1] == "Starting"


@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        (make_pod("head", attempt=7), True),
        (make_pod("head", deleting=NOW - timedelta(seconds=179)), True),
        (make_pod("head", deleting=NOW - timedelta(seconds=180)), False),
        (make_pod("head", gone=True), False),
        (make_pod("learner"), False),
    ],
)
def test_a_head_that_may_still_write_is_waited_for(pod: Any, waits: bool) -> None:
    decision = look(make_run(), pods=(pod,))
    assert (decision.create == ()) is waits
    assert decision.requeue == 2.0
    if waits:
        waiting = ("False", "Stopping", f"waiting for {pod.name} to be gone")
        assert condition(decision, "ClusterReady") == waiting


def test_what_is_left_of_a_failed_attempt_goes() -> None:
    story = Story()
    story.begin()
    story.fail(CRASH)
    story.wait(10)
    decision = story.look(pods=(make_pod("head"),))
    assert condition(decision, "ClusterReady") == (
        "False",
        "Stopping",
        "waiting for sums-1, sums-1-head-0 to be gone",
    )
    assert deleted(decision) == [("RayJob", "sums-1")]


def test_a_profile_that_goes_before_the_beginning_of_an_attempt() -> None:
    story = Story({"profile": "shared"}, [make_profile()])
    story.profiles = []
    decision = story.look()
    assert (decision.create, decision.apply, decision.status.phase) == ((), (), "Pending")
