"""Traffic that moves to a second cluster in steps: who has how much, a halt, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from service_worlds import CLUSTER, ServiceStory, checkpoint

from rl_operator.model.service import Control, Evaluation, Gateway, Replica, VersionFigures

SECOND = "chat-fghij"
STEPS = {"gatewayClass": "haproxy", "stepPercent": 20, "interval": "30s"}
GATEWAY = Gateway("10.0.0.7")


class Steps(ServiceStory):
    """A service whose first policy serves in one cluster; the second comes up where the test says so."""

    def __init__(self, steps: dict[str, Any] | None = None, **promotion: Any) -> None:
        whole = {"strategy": "incremental", "incremental": STEPS | (steps or {}), **promotion}
        super().__init__({"promotion": whole}, gateway=GATEWAY)
        self.served(20)
        assert self.world.ray is not None
        self.world = replace(self.world, ray=replace(self.world.ray, steps=True))
        self.first, self.second = checkpoint(20).version, checkpoint(30).version
        self.active_version = self.first
        self.new: dict[str, VersionFigures] = {}
        self.silent = False
        """Whether the control of the first cluster does not answer."""

    def begin(self) -> None:
        """The next checkpoint is there and passes the gate."""
        self.checkpoints = [checkpoint(30), *self.checkpoints]
        self.evaluations[checkpoint(30).digest] = Evaluation("passed", "it is good enough")
        self.looks(3)
        assert self.told == self.second

    def shared(self, percent: int, *versions: str, **ray: Any) -> None:
        """KubeRay sends so much to the second cluster, whose copies serve these versions."""
        assert self.world.ray is not None
        seen = replace(self.world.ray, pending=SECOND, share=percent, **ray)
        copies = tuple(Replica(str(place), version) for place, version in enumerate(versions))
        self.look(ray=seen, coming=Control(self.now, SECOND, replicas=copies, versions=self.new))

    @property
    def options(self) -> dict[str, Any]:
        """How KubeRay is told to move the traffic."""
        strategy = self.world.live["RayService", "chat"].spec["upgradeStrategy"]
        assert strategy["type"] == "NewClusterWithIncrementalUpgrade"
        found: dict[str, Any] = strategy["clusterUpgradeOptions"]
        return found

    @property
    def shares(self) -> dict[str, int]:
        """Percent of the requests by version."""
        return {one.version: one.percent for one in self.status.traffic}

    def _control(self) -> Control | None:
        found = super()._control()
        if found is None or not hasattr(self, "active_version"):
            return found
        if self.silent:
            return None
        cluster = self.world.ray.active if self.world.ray is not None else CLUSTER
        return replace(found, cluster=cluster, replicas=(Replica("one", self.active_version),))


def test_the_traffic_moves_and_the_candidate_is_promoted_when_it_has_all_of_it() -> None:
    story = Steps()
    assert story.options == {
        "gatewayClassName": "haproxy",
        "maxSurgePercent": 100,
        "stepSizePercent": 20,
        "intervalSeconds": 30,
    }
    story.begin()
    story.shared(0)
    assert story.shares == {story.first: 100}
    story.shared(20, story.second)
    assert story.shares == {story.first: 80, story.second: 20}
    assert story.condition("Promoting")[1:] == (
        "RollingOut",
        f"{story.second}: 20% of the requests go to it",
    )
    assert story.status.phase == "Updating"
    assert story.status.endpoints == ["http://10.0.0.7/v1"]
    story.looks(40, 60.0)  # it takes as long as it takes
    assert story.status.candidate is not None
    assert story.world.ray is not None
    story.active_version = story.second
    story.look(ray=replace(story.world.ray, active=SECOND, pending="", share=None), coming=None)
    assert story.status.serving is not None
    assert story.status.serving.version == story.second
    assert story.shares == {story.second: 100}


def test_while_one_of_two_clusters_says_nothing_nobody_is_said_to_have_all_requests() -> None:
    story = Steps()
    story.begin()
    story.shared(40, story.second)
    assert story.shares == {story.first: 60, story.second: 40}
    story.look(coming=None)
    assert story.shares == {}
    story.shared(40, story.second)
    story.silent = True
    story.shared(40, story.second)
    assert story.shares == {}
    story.silent = False
    story.shared(40, story.second)
    assert story.shares == {story.first: 60, story.second: 40}


def test_of_a_cluster_that_gets_no_requests_yet_nothing_need_be_known() -> None:
    story = Steps()
    story.begin()
    story.shared(0)
    story.look(coming=None)
    assert story.shares == {story.first: 100}


def test_a_halt_and_how_it_goes_on() -> None:
    story = Steps()
    story.begin()
    story.shared(40, story.second)
    story.spec["promotion"]["incremental"] = STEPS | {"halted": True}
    story.look()
    assert story.options["stepSizePercent"] == 0
    assert story.condition("Promoting")[2] == f"{story.second}: 40% of the requests go to it; halted"
    story.spec["promotion"]["incremental"] = STEPS
    story.look()
    assert story.options["stepSizePercent"] == 20


def test_one_that_is_worse_than_the_other_goes_back_at_once_even_where_it_is_halted() -> None:
    story = Steps({"halted": True}, rollback={"minRequests": 10})
    story.figures = {story.first: VersionFigures(requests=100, errors=1, token_seconds=0.01)}
    story.begin()
    story.new = {story.second: VersionFigures(requests=20, errors=2, token_seconds=0.01)}
    story.shared(40, story.second)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "RollingBack"
    assert "2 of 20 requests failed" in story.status.candidate.message
    assert story.told == story.first
    assert (story.options["stepSizePercent"], story.options["intervalSeconds"]) == (100, 1)
    story.shared(40, story.first)
    assert story.status.candidate is not None, "the second cluster still has some of it"
    assert story.world.ray is not None
    story.look(ray=replace(story.world.ray, pending="", share=None), coming=None)
    assert story.status.candidate is None
    assert story.status.serving is not None
    assert story.status.serving.version == story.first
    assert [one.result for one in story.status.promotions] == ["promoted", "rolledBack"]
    assert story.status.refused == [checkpoint(30).digest]
    assert story.options["stepSizePercent"] == 0


def test_what_both_do_badly_is_no_fault_of_the_new_one() -> None:
    story = Steps(rollback={"minRequests": 10})
    story.figures = {story.first: VersionFigures(requests=100, errors=10, token_seconds=0.01)}
    story.begin()
    story.new = {story.second: VersionFigures(requests=20, errors=2, token_seconds=0.02)}
    story.shared(40, story.second)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "RollingOut"


def test_a_probe_is_asked_of_the_second_cluster() -> None:
    story = Steps(gate={"probe": {"configMap": "probe", "maxDrop": 0.1}})
    story.figures = {story.first: VersionFigures(requests=100, probe=0.9)}
    story.looks(3, 100.0)  # it has been watched for long enough
    story.begin()
    story.shared(0)
    assert story.last.wish is None
    story.shared(20, story.second)
    assert story.last.wish is not None
    assert (story.last.wish.path, story.last.wish.cluster) == ("probe", SECOND)
    story.new = {story.second: VersionFigures(requests=5, probe=0.7)}
    story.shared(20, story.second)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "RollingBack"
    assert "0.700 in the probe" in story.status.candidate.message


def test_the_way_back_by_hand_and_again() -> None:
    story = Steps(mode="manual", step=20)
    story.spec["promotion"]["step"] = 30
    story.begin()
    story.shared(40, story.second)
    story.spec["promotion"]["step"] = 20
    story.look()
    assert story.told == story.first
    assert story.world.ray is not None
    story.look(ray=replace(story.world.ray, pending="", share=None), coming=None)
    last = story.status.promotions[-1]
    assert (last.result, last.message) == ("rolledBack", "step 20 is wanted instead")
    assert story.status.refused == []
    story.spec["promotion"]["step"] = 30
    story.looks(3)
    assert story.told == story.second


def test_a_copy_that_is_made_anew_in_the_middle_is_no_reason_to_go_back() -> None:
    story = Steps()
    story.begin()
    story.shared(40, story.second)
    story.looks(20, 60.0)
    story.shared(40, "")
    assert story.status.candidate is not None
    assert story.status.candidate.state == "RollingOut"


def test_other_pods_in_the_middle_of_a_halt() -> None:
    story = Steps({"halted": True})
    story.begin()
    story.shared(40, story.second)
    assert story.options["stepSizePercent"] == 0
    story.shared(40, story.second, going_back=True)
    assert story.options["stepSizePercent"] == 100, "KubeRay would go back for ever"


def test_copies_of_the_second_cluster_that_cannot_load_it() -> None:
    story = Steps()
    story.begin()
    copies = (Replica("one", "", error="no space left on device"),)
    assert story.world.ray is not None
    ray = replace(story.world.ray, pending=SECOND, share=0)
    for _ in range(5):
        story.look(ray=ray, coming=Control(story.now, SECOND, replicas=copies))
    assert story.status.candidate is not None
    assert story.status.candidate.message == "a copy cannot load it: no space left on device"


@pytest.mark.parametrize(
    ("steps", "gateway", "reason", "words"),
    [
        (False, GATEWAY, "NoIncrementalUpgrade", "RayServiceIncrementalUpgrade is off"),
        (True, None, "NoGateway", "Gateway chat-gateway of class haproxy is not there"),
        (True, Gateway("", "Accepted: nobody has looked at it"), "GatewayNotReady", "takes no requests"),
    ],
)
def test_why_no_request_comes_through(steps: bool, gateway: Gateway | None, reason: str, words: str) -> None:
    story = Steps()
    assert story.world.ray is not None
    story.look(ray=replace(story.world.ray, steps=steps), gateway=gateway)
    assert story.condition("ClusterReady")[:2] == ("False", reason)
    assert words in story.condition("ClusterReady")[2]
