"""What a service's status says: conditions, phase, replicas, and what keeps it from running."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import make_profile
from service_worlds import CLUSTER, HEAD, NOW, ServiceStory, checkpoint, make_service, make_service_plan

from rl_operator.decide.service import reconcile_service
from rl_operator.model.seen import Container, Pod
from rl_operator.model.service import Evaluation, RayService, ServiceWorld
from rl_operator.model.settings import Settings
from rl_operator.plan.service import plan_service


def pod(role: str, **more: Any) -> Pod:
    return Pod(name=f"{CLUSTER}-{role}", uid=f"uid-{role}", role=role, attempt=0, owner="cluster-uid", **more)


@pytest.mark.parametrize("spec", [None, "text", [], 5, {}, {"from": {}}, {"from": {"run": 7}, "auth": None}])
@pytest.mark.parametrize("status", [None, {}, {"serving": "none"}, {"conditions": [{"type": 1}]}])
def test_no_object_makes_it_crash(spec: object, status: object) -> None:
    service = make_service() | {"spec": spec, "status": status}
    decision = reconcile_service(ServiceWorld(service), NOW, plan_service(service, [], Settings()))
    found = next(one for one in decision.status.conditions if one.type == "Accepted")
    assert (found.status, found.reason) == ("False", "InvalidSpec")
    assert decision.create == ()


def test_a_mistake_takes_nothing_down() -> None:
    story = ServiceStory()
    story.served(20)
    story.spec = {"replicas": {"min": 0}}
    decision = story.look()
    assert (decision.create, decision.apply) == ((), ())
    assert story.condition("Accepted")[:2] == ("False", "InvalidSpec")
    assert story.status.phase == "Serving"
    assert story.status.serving is not None


@pytest.mark.parametrize("reason", ["RunMissing", "RunRefused", "NoStorage"])
def test_without_a_source_no_pod_is_started(reason: str) -> None:
    story = ServiceStory(followed=None, lost=(reason, "there is no run"))
    decision = story.look()
    assert decision.create == ()
    assert story.condition("SourceFound") == ("False", reason, "there is no run")
    assert story.status.phase == "Pending"
    assert [note.reason for note in decision.notes] == [reason, "NoSource"]
    assert story.look().notes == ()


def test_a_deleted_run_is_said_and_its_policy_goes_on() -> None:
    story = ServiceStory()
    story.served(20)
    story.looks(3, 60)
    decision = story.look(lost=("RunDeleted", "run sums was deleted"))
    assert story.condition("SourceFound")[:2] == ("False", "RunDeleted")
    assert decision.apply == ()
    assert story.condition("Serving")[0] == "True"


def test_without_kuberay_it_says_so() -> None:
    story = ServiceStory(kuberay=False)
    story.look()
    assert story.condition("ClusterReady")[:2] == ("False", "KubeRayMissing")


def test_without_dra_no_devices_are_claimed() -> None:
    pools = [{"name": "gpus", "deviceClass": {"name": "gpu.nvidia.com"}}, {"name": "cpu"}]
    for dra, reason in ((False, "DRAMissing"), (True, "Starting")):
        story = ServiceStory(dra=dra)
        story.profiles = [make_profile(default=True, pools=pools)]
        decision = story.look()
        assert story.condition("ClusterReady")[:2] == ("False", reason)
        assert bool(decision.create) is dra


def test_a_deleted_service_is_left_to_the_garbage_collector() -> None:
    service = make_service()
    service["metadata"]["deletionTimestamp"] = "2026-11-01T12:00:00Z"
    decision = reconcile_service(ServiceWorld(service), NOW, plan_service(service, [], Settings()))
    assert (decision.create, decision.apply, decision.notes) == ((), (), ())


def test_why_a_pod_does_not_run_is_why_the_service_does_not() -> None:
    story = ServiceStory()
    story.look()
    waiting = Container("ray", image="nowhere/none:1", waiting="ImagePullBackOff")
    pods = (pod("head", ready=True, phase="Running"), pod("replica", phase="Pending", containers=(waiting,)))
    story.look(pods=pods, clusters={one.name: CLUSTER for one in pods})
    status, reason, message = story.condition("ClusterReady")
    assert (status, reason) == ("False", "ImagePullFailed")
    assert message.startswith("replica: the image 'nowhere/none:1' cannot be pulled")
    assert story.status.replicas is not None
    assert story.status.replicas.reason == message


@pytest.mark.parametrize(("role", "field"), [("head", "head.resources"), ("replica", "resources")])
def test_too_little_memory_is_said_with_a_service_s_own_fields(role: str, field: str) -> None:
    story = ServiceStory()
    story.look()
    killed = Container("ray", ended="OOMKilled", exit_code=137)
    pods = (pod(role, phase="Running", containers=(killed,), memory_limit="2Gi"),)
    story.look(pods=pods, clusters={one.name: CLUSTER for one in pods})
    assert story.condition("ClusterReady")[1:] == (
        "OutOfMemory",
        f"{role}: pod {CLUSTER}-{role} was killed because it used more than its memory limit of 2Gi; raise {field}.memory: "
        "there has to be room for two copies of the policy, or lower limits.context",
    )


def test_pods_of_an_older_cluster_say_nothing() -> None:
    story = ServiceStory()
    story.look()
    waiting = Container("ray", image="nowhere/none:1", waiting="ImagePullBackOff")
    pods = (HEAD, pod("replica", containers=(waiting,)))
    story.look(pods=pods, clusters={HEAD.name: CLUSTER, f"{CLUSTER}-replica": "older"})
    assert story.condition("ClusterReady")[1] == "Ready"


def test_a_cluster_without_a_head_is_not_ready_whatever_kuberay_says() -> None:
    story = ServiceStory()
    story.served(20)
    assert story.condition("ClusterReady")[1] == "Ready"
    new = replace(HEAD, name=f"{CLUSTER}-another", ready=False)
    for pods in ((), (replace(HEAD, deleting=NOW),), (replace(HEAD, deleting=NOW), new)):
        story.look(pods=pods, clusters={one.name: CLUSTER for one in pods})
        assert story.condition("ClusterReady") == ("False", "Starting", "the pods are starting")
    story.look(pods=(replace(new, ready=True),))
    assert story.condition("ClusterReady")[1] == "Ready"


def test_what_serve_says_is_told() -> None:
    story = ServiceStory()
    story.look()
    assert story.world.ray is not None
    failed = replace(
        story.world.ray, ready=False, problem="rltrain: no module", applications={"rltrain": "DEPLOY_FAILED"}
    )
    story.look(ray=failed)
    assert story.condition("ClusterReady") == ("False", "ServeFailed", "Ray Serve: rltrain: no module")
    assert story.status.phase == "Failed"


def test_a_refusal_of_the_api_server_is_shown_and_nothing_is_tried() -> None:
    story = ServiceStory(refusal="the API server refuses: exceeded quota: gpus")
    decision = story.look()
    assert decision.create == ()
    assert story.condition("ClusterReady")[1] == "QuotaExceeded"


def test_two_clusters_are_an_update() -> None:
    story = ServiceStory()
    story.served(20)
    assert story.world.ray is not None
    story.look(ray=replace(story.world.ray, pending="chat-new"))
    assert story.status.phase == "Updating"


def test_what_somebody_changed_is_put_right() -> None:
    story = ServiceStory()
    story.served(20)
    live = dict(story.world.live)
    changed = live["NetworkPolicy", "chat.service"]
    live["NetworkPolicy", "chat.service"] = replace(changed, spec={**changed.spec, "ingress": []})
    decision = story.look(live=live)
    assert [one["kind"] for one in decision.apply] == ["NetworkPolicy"]


def test_a_step_that_is_not_there_is_named() -> None:
    story = ServiceStory({"promotion": {"mode": "manual", "step": 15}})
    story.looks(2)
    story.checkpoints = [checkpoint(20), checkpoint(10)]
    story.look()
    assert story.condition("Promoting") == (
        "False",
        "StepMissing",
        "spec.promotion.step: found 15, allowed: a step with a checkpoint: 10, 20",
    )


def test_a_step_that_was_refused_is_named_with_the_reason() -> None:
    story = ServiceStory()
    story.served(10)
    story.checkpoints.insert(0, checkpoint(20))
    story.evaluations[checkpoint(20).digest] = Evaluation("failed", "probe: 0.10, allowed: at least 0.85")
    story.looks(2)
    story.spec = {"promotion": {"mode": "manual", "step": 20}}
    story.look()
    assert story.condition("Promoting") == (
        "False",
        "StepRefused",
        "spec.promotion.step: found 20, whose checkpoint was refused or taken back and is not tried again: probe: 0.10, "
        "allowed: at least 0.85",
    )


def test_tokens_that_somebody_deleted_are_made_again() -> None:
    story = ServiceStory()
    story.served(20)
    assert story.look().create == ()
    name = make_service_plan().secret
    lost = f'secret "{name}" not found'
    waiting = Container("ray", waiting="CreateContainerConfigError", waiting_message=lost)
    pods = (pod("head", phase="Pending", containers=(waiting,)),)
    decision = story.look(pods=pods, clusters={one.name: CLUSTER for one in pods})
    assert [(one["kind"], one["metadata"]["name"]) for one in decision.create] == [("Secret", name)]
    other = replace(waiting, waiting_message='secret "keys" not found')
    pods = (pod("head", phase="Pending", containers=(other,)),)
    assert story.look(pods=pods).create == ()


def test_the_strategy_of_a_new_cluster_changes_the_head_for_all_but_the_first() -> None:
    story = ServiceStory({"promotion": {"strategy": "newCluster", "rollback": {"window": "0s"}}})

    def metadata() -> dict[str, Any]:
        spec = story.world.live["RayService", "chat"].spec
        found: dict[str, Any] = spec["rayClusterConfig"]["headGroupSpec"]["template"]["metadata"]
        return found

    story.look()
    without = metadata()
    story.served(20)
    assert metadata() == without, "a second cluster would come up for nothing"
    story.served(30)
    assert metadata()["annotations"] == {"rltrain.dev/policy": checkpoint(30).version}
    story.look()
    assert metadata()["annotations"] == {"rltrain.dev/policy": checkpoint(30).version}


def test_a_silent_control_is_no_service_that_is_down() -> None:
    story = ServiceStory()
    story.served(20)
    ray = story.world.ray
    service = make_service(status=story.status.model_dump(mode="json", by_alias=True, exclude_none=True))
    world = replace(story.world, service=service, ray=ray, control=None, control_error="no connection")
    decision = reconcile_service(world, story.now, plan_service(service, [], Settings()))
    found = next(one for one in decision.status.conditions if one.type == "Serving")
    assert (found.status, found.reason) == ("Unknown", "ControlSilent")
    assert isinstance(ray, RayService)
