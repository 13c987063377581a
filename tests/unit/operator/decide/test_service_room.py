"""A service among all runs and services of its namespace: when it waits, for what, and what it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, kinds, make_profile
from service_worlds import ServiceStory, make_service_plan

from rl_operator.decide.room import held_by_service, waits
from rl_operator.model.needs import Needs, Others
from rl_operator.plan.limits import pods_need
from rl_operator.plan.refused import Refused

POOLS = [GPU_POOLS[0], {"name": "cpu"}]
GPUS = {"pools": ["h100"], "resources": {"accelerators": 1}}


def limited(name: str = "shared", **limits: Any) -> dict[str, Any]:
    return make_profile(name, default=True, pools=POOLS, limits={"perNamespace": limits})


def story(spec: dict[str, Any] | None = None, **limits: Any) -> ServiceStory:
    made = ServiceStory(GPUS | {"replicas": {"min": 2}} | (spec or {}))
    made.profiles = [limited(**limits)]
    return made


def others(first: str = "", **held: int) -> Others:
    return Others(Needs(**held), first)


@pytest.mark.parametrize(
    ("limits", "there", "message"),
    [
        (
            {"maxAccelerators": 4},
            others(accelerators=3),
            "the runs and services of namespace team-a would have 5 accelerators with this one, allowed at once by profile "
            "shared: 4; it begins when enough of them have ended or were deleted",
        ),
        ({"maxEphemeralStorage": "600Gi"}, others(storage=600 * 2**30), "of disk with this one, allowed at once by"),
        ({"maxAccelerators": 4}, others("run older"), "run older, which is older, waits for others of namespace team-a"),
    ],
)  # fmt: skip
def test_a_service_without_room_waits_and_then_begins(
    limits: dict[str, Any], there: Others, message: str
) -> None:
    one = story(**limits)
    decision = one.look(others=there)
    assert (decision.create, decision.requeue, one.status.phase) == ((), 60.0, "Pending")
    assert waits(one.status.conditions)
    assert one.condition("ClusterReady")[:2] == ("False", "NamespaceLimit")
    assert message in one.condition("ClusterReady")[2]
    assert one.condition("Serving") == ("False", "NamespaceLimit", "its pods wait for room")
    assert (one.status.replicas, one.status.endpoints, one.reasons) == (None, [], [])
    assert kinds(one.look(others=Others()))[-1] == "RayService"
    assert not waits(one.status.conditions)


@pytest.mark.parametrize("limits", [{"maxRuns": 1}, {"maxSamplers": 1, "maxLearners": 1}, {}])
def test_a_service_is_no_run_and_has_no_samplers(limits: dict[str, int]) -> None:
    one = story(**limits)
    assert kinds(one.look(others=others("run older", runs=7, samplers=7, learners=7)))[-1] == "RayService"


def test_what_is_left_is_enough_to_the_last() -> None:
    assert kinds(story(maxAccelerators=4).look(others=others(accelerators=2)))[-1] == "RayService"


def test_a_service_under_way_is_not_taken_down() -> None:
    one = story(maxAccelerators=4)
    one.served(20)
    one.served(30)
    decision = one.look(others=others("run older", accelerators=4))
    assert (decision.create, decision.apply) == ((), ())
    assert one.condition("ClusterReady") == ("True", "Ready", "the pods are ready")
    assert one.status.phase == "Serving"


def test_what_takes_more_than_there_is_waits_for_room() -> None:
    one = story(maxAccelerators=8)
    one.served(20)
    one.spec = one.spec | {"replicas": {"min": 4}}
    decision = one.look(others=others(accelerators=6))
    assert (decision.create, decision.apply, decision.change, decision.scale) == ((), (), (), None)
    status, reason, message = one.condition("ClusterReady")
    assert (status, reason) == ("True", "UpdateWaits")
    assert message.startswith(
        "the runs and services of namespace team-a would have 10 accelerators with this one"
    )
    assert message.endswith("the service goes on as it was until there is room for what it is to become")
    assert not waits(one.status.conditions)
    assert one.status.phase == "Serving"
    pods = one.world.pods
    one.look(pods=())
    assert one.condition("ClusterReady")[:2] == ("False", "UpdateWaits"), "its head is gone"
    decision = one.look(others=others(accelerators=4), pods=pods)
    assert kinds(decision) == []
    assert [each["kind"] for each in decision.apply] == ["RayService"]
    assert one.condition("ClusterReady")[1] == "Ready"


def test_what_takes_no_more_does_not_wait() -> None:
    one = story(maxAccelerators=4)
    one.served(20)
    for change in ({"image": "registry.example/other:2"}, {"replicas": {"min": 1}}):
        one.spec = one.spec | change
        decision = one.look(others=others("run older", accelerators=9))
        assert [each["kind"] for each in decision.apply] == ["RayService"], change


def test_under_another_profile_all_of_it_is_new() -> None:
    one = story(maxAccelerators=4)
    one.served(20)
    one.profiles.append(limited("other", maxAccelerators=4) | {})
    one.profiles[1]["spec"]["default"] = False
    one.spec = one.spec | {"profile": "other"}
    assert one.look(others=others(accelerators=3)).apply == ()
    assert one.condition("ClusterReady")[1] == "UpdateWaits"
    assert [each["kind"] for each in one.look(others=others(accelerators=2)).apply] == ["RayService"]


def test_one_without_a_source_keeps_nobody_waiting() -> None:
    one = story(maxAccelerators=4)
    one.look(others=others(accelerators=4))
    assert waits(one.status.conditions)
    one.look(followed=None, lost=("RunMissing", "there is no run"))
    assert not waits(one.status.conditions)


class TestWhatAServiceHolds:
    PLAN = make_service_plan(GPUS | {"replicas": {"min": 2}}, limited())
    ALL = pods_need(PLAN.roles)

    def test_what_is_decided_counts_at_once(self) -> None:
        one = story()
        assert held_by_service(one.world, self.PLAN) == ("shared", Needs())
        assert held_by_service(one.world, self.PLAN, one.look()) == ("shared", self.ALL)
        assert (self.ALL.runs, self.ALL.accelerators) == (0, 2)

    def test_what_is_read_is_what_was_asked_for(self) -> None:
        one = story()
        one.look()
        assert one.world.ray is not None
        assert one.world.ray.asked == self.ALL

    def test_each_of_its_clusters_counts(self) -> None:
        one = story()
        one.look()
        world = replace(one.world, asked=(self.ALL, self.ALL))
        assert held_by_service(world, self.PLAN)[1] == self.ALL.times(2)
        assert held_by_service(replace(world, asked=(self.ALL,)), self.PLAN)[1] == self.ALL

    def test_it_counts_for_the_profile_that_it_has_its_pods_of(self) -> None:
        one = story()
        one.look()
        assert held_by_service(one.world, Refused("InvalidSpec", ""), one.last)[0] == "shared"
        other = replace(self.PLAN, profile_name="other")
        assert held_by_service(one.world, other)[0] == "shared"
        assert held_by_service(one.world, other, one.last)[0] == "other", "it is written under this one"
