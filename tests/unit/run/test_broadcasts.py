"""Who meets for a broadcast: a new group when samplers come, go or fail, and none at all after three failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from rl_api import RunSpec
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.rollout.fleet import Samplers as Fleet
from rl_trainer.run import broadcasts as module
from rl_trainer.run.broadcasts import MOST_FAILURES, Broadcasts
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication


class Call:
    """In place of Ray's reference: what has come of a sampler's `join`."""

    result: str | Exception | None
    done = False


class Sampler:
    def __init__(self) -> None:
        self.join = self
        self.calls: list[Call] = []
        self.members: list[int] = []

    def remote(self, invitation: Invitation, member: int) -> Call:
        self.calls.append(Call())
        self.members.append(member)
        return self.calls[-1]


class Learners:
    size = 1 << 30

    def __init__(self) -> None:
        self.sent: list[Invitation] = []
        self.failure: str | None = None

    def meeting_point(self) -> tuple[str, int]:
        return "10.0.0.1", 4000

    def broadcast(self, published: Publication, invitation: Invitation) -> None:
        self.sent.append(invitation)

    def broadcast_failure(self) -> str | None:
        failure, self.failure = self.failure, None
        return failure


class Samplers:
    nodes, accelerated = 2, False

    def __init__(self, count: int) -> None:
        self.actors = {rank: Sampler() for rank in range(count)}

    @property
    def ready(self) -> list[int]:
        return [*self.actors]

    @property
    def workers(self) -> WorkerGroup:
        return WorkerGroup("sampler", self.actors)


class Ray:
    @staticmethod
    def wait(calls: list[Call], num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        assert (num_returns, timeout) == (len(calls), 0)
        return [one for one in calls if one.done], [one for one in calls if not one.done]

    @staticmethod
    def get(call: Call, timeout: float) -> str | None:
        if isinstance(call.result, Exception):
            raise call.result
        return call.result


class World:
    def __init__(self, transport: str, samplers: int = 2):
        spec = RunSpec.model_validate({"weightSync": {"transport": transport, "timeout": "7s"}})
        self.learners, self.samplers, self.said = Learners(), Samplers(samplers), list[str]()
        both: Any = self.learners, self.samplers
        self.broadcasts = Broadcasts(spec, *both, self.said.append)

    def spread(self, version: int, way: Any = "objectStore") -> str:
        return self.broadcasts.spread(Publication(version, way, ["block"])).way

    def end(self, *results: str | Exception | None) -> None:
        """The last broadcast is over, with these results by sampler."""
        for sampler, result in zip(self.samplers.actors.values(), results, strict=True):
            sampler.calls[-1].result, sampler.calls[-1].done = result, True

    @property
    def groups(self) -> list[str]:
        return [invitation.group for invitation in self.learners.sent]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ray", Ray)


def test_the_same_samplers_stay_one_group_and_others_are_a_new_one():
    world = World("collective")
    assert world.spread(0) == "collective"
    assert world.learners.sent == [Invitation(0, "1", ("10.0.0.1", 4000), 3, 7.0, "gloo")]
    assert [one.members for one in world.samplers.actors.values()] == [[1], [2]]
    world.end(None, None)
    world.spread(1)
    world.end(None, None)
    world.samplers.actors[2] = Sampler()
    world.spread(2)
    world.end(None, None, None)
    del world.samplers.actors[0]
    world.spread(3)
    world.end(None, None)
    world.samplers.actors[1] = Sampler()  # replaced
    world.spread(4)
    assert world.groups == ["1", "1", "2", "3", "4"]
    assert [invitation.size for invitation in world.learners.sent] == [3, 3, 4, 3, 3]
    assert world.said == []


def test_after_a_failure_the_group_is_new_and_after_three_there_is_none():
    world = World("collective")
    for version, failure in enumerate(["no memory", RayActorError(), "no network"]):
        world.spread(version)
        world.end(None, failure)
    assert MOST_FAILURES == 3
    assert world.spread(3) == world.spread(4) == "objectStore"
    assert world.groups == ["1", "2", "3"]
    assert world.said == [
        "no memory; the version goes through the object store",
        "a sampler was lost while weights were broadcast to it (RayActorError); the version goes through the object store",
        "no network; the version goes through the object store; after 3 such versions all that follow do",
    ]


def test_failures_that_are_not_in_a_row_are_forgiven():
    world = World("collective")
    for version, failure in enumerate(["no memory", "no memory", None, "no memory", "no memory"]):
        world.spread(version)
        world.end(None, failure)
    assert world.spread(5) == "collective"


def test_what_goes_another_way_is_not_broadcast():
    assert World("auto").spread(0) == "objectStore"
    assert World("objectStore").spread(0) == "objectStore"
    assert World("collective", samplers=0).spread(0) == "objectStore"
    world = World("collective")
    assert world.spread(0, "delta") == "delta"
    assert world.learners.sent == []
    world = World("auto")
    world.samplers.accelerated = True
    assert world.spread(0) == "collective"
    assert world.learners.sent[0].backend == "nccl"


def test_while_a_broadcast_is_under_way_versions_go_through_the_object_store():
    world = World("collective")
    assert world.spread(0) == "collective"
    first, second = (sampler.calls[0] for sampler in world.samplers.actors.values())
    second.done, second.result = True, "no memory"  # and the other one stands still
    assert [world.spread(version) for version in range(1, 20)] == ["objectStore"] * 19
    assert len(world.learners.sent) == 1
    assert world.said == []
    first.done, first.result = True, None
    assert world.spread(20) == "collective"
    assert world.groups == ["1", "2"]
    assert world.said == ["no memory; the version goes through the object store"]


def test_what_fails_on_the_side_of_the_learner_is_said_first():
    world = World("collective")
    world.spread(0)
    world.learners.failure = "learner 0: no network"
    world.end("nothing came", "nothing came either")
    world.spread(1)
    world.learners.failure = "learner 0: its group was left"
    world.end(None, None)
    world.spread(2)
    assert world.said == [
        "learner 0: no network; nothing came; the version goes through the object store",
        "learner 0: its group was left; the version goes through the object store",
    ]
    assert world.groups == ["1", "2", "3"]


def test_a_sampler_that_is_still_loading_is_not_invited():
    world = World("collective")
    fleet: Any = Fleet.__new__(Fleet)
    fleet._watch = None
    loading, there = Sampler(), Sampler()
    fleet._samplers = {
        0: SimpleNamespace(actor=loading, ready=Call(), died=None),
        1: SimpleNamespace(actor=there, ready=None, died=None),
    }
    world.samplers.actors = fleet.workers.actors
    assert world.spread(0) == "collective"
    assert (loading.members, there.members) == ([], [1])
    assert world.learners.sent[0].size == 2
