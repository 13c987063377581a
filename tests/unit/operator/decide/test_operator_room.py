"""What all runs and services of a namespace have at once: who waits, for what, and what a run holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    Story,
    all_pods,
    condition,
    group,
    kinds,
    make_plan,
    make_profile,
    make_ray,
    pods,
    training,
    with_group,
)

from rl_api.progress import Attempt
from rl_operator.decide.room import held, waits
from rl_operator.model.needs import Asked, Needs, Others
from rl_operator.model.seen import Claim, World
from rl_operator.plan.limits import needs_of
from rl_operator.plan.refused import Refused

POOLS = [GPU_POOLS[0], {"name": "cpu"}]


def limited(**limits: Any) -> dict[str, Any]:
    return make_profile(default=True, pools=POOLS, limits={"perNamespace": limits})


def others(first: str = "", **held: int) -> Others:
    return Others(Needs(**held), first)


@pytest.mark.parametrize(
    ("limits", "there", "message"),
    [
        ({"maxRuns": 2}, others(runs=2), "would have 3 runs with this one, allowed at once by profile shared: 2;"),
        ({"maxSamplers": 4}, others(samplers=3), "would have 5 samplers with this one, allowed at once by"),
        ({"maxLearners": 4}, others(learners=4), "would have 5 learners with this one, allowed at once by"),
        ({"maxAccelerators": 8}, others(accelerators=6), "would have 9 accelerators with this one, allowed at once by"),
        ({"maxEphemeralStorage": "420Gi"}, others(storage=2**35), "would have 432Gi of disk with this one, allowed at"),
    ],
)  # fmt: skip
def test_a_run_waits_for_others_of_its_namespace_and_then_begins(
    limits: dict[str, Any], there: Others, message: str
) -> None:
    story = Story(profiles=[limited(**limits)])
    decision = story.settled(others=there)
    assert (decision.create, decision.requeue, decision.status.phase) == ((), 60.0, "Pending")
    assert waits(decision.status.conditions)
    found = condition(decision, "ClusterReady")
    assert found is not None
    assert found[:2] == ("False", "NamespaceLimit")
    assert f"the runs and services of namespace team-a {message}" in found[2]
    assert decision.notes == ()
    decision = story.look(others=Others())
    assert kinds(decision)[-1] == "RayJob"
    assert not waits(decision.status.conditions)


def test_what_is_left_is_enough_to_the_last() -> None:
    story = Story(profiles=[limited(maxAccelerators=8)])
    assert kinds(story.look(others=others(accelerators=5)))[-1] == "RayJob"


def test_a_run_does_not_pass_one_that_waits_for_longer() -> None:
    story = Story(profiles=[limited(maxAccelerators=8)])
    found = condition(story.settled(others=others("run older")), "ClusterReady")
    assert found is not None
    assert found[:2] == ("False", "NamespaceLimit")
    assert found[2].startswith("run older, which is older, waits for others of namespace team-a to end")
    unlimited = Story(profiles=[make_profile(default=True)])
    assert kinds(unlimited.look(others=others("run older")))[-1] == "RayJob"


def test_who_takes_nothing_of_what_is_limited_waits_for_nobody() -> None:
    pools = {"learner": {"pools": ["cpu"]}, "sampler": {"pools": ["cpu"]}}
    story = Story(pools, profiles=[limited(maxAccelerators=8)])
    assert kinds(story.look(others=others("run older", accelerators=9)))[-1] == "RayJob"


def test_who_can_no_longer_be_carried_out_keeps_nobody_waiting() -> None:
    story = Story(profiles=[limited(maxRuns=1)])
    assert waits(story.settled(others=others(runs=1)).status.conditions)
    story.set({"stop": {"maxSteps": -1}})
    decision = story.look()
    found = condition(decision, "Accepted")
    assert found is not None
    assert found[0] == "False"
    assert not waits(decision.status.conditions)


def test_a_run_under_way_is_not_stopped_by_a_limit() -> None:
    story = Story(profiles=[limited(maxRuns=1)])
    story.begin()
    story.train()
    assert condition(story.settled(others=others(runs=7)), "Training") is not None
    assert story.look().status.phase == "Training"


class TestGrowing:
    def test_samplers_grow_as_far_as_there_is_room(self) -> None:
        story = training(profile=limited(maxAccelerators=8))
        story.look(rays=(with_group(group(2, most=2)),), pods=pods(2))
        story.set({"sampler": {"replicas": 6}})
        decision = story.look(others=others(accelerators=3))
        assert decision.scale is not None
        assert decision.scale.replicas == 4, "with the learner's 1 and the others' 3"
        assert decision.status.roles["sampler"].reason == (
            "6 samplers are wanted and 4 allowed now: namespace team-a has no room for more under profile shared"
        )
        decision = story.look(others=Others())
        assert decision.scale is not None
        assert decision.scale.replicas == 6

    def test_none_is_taken_away_for_others(self) -> None:
        story = training(profile=limited(maxAccelerators=8))
        story.look(rays=(with_group(group(2, most=2)),), pods=pods(2))
        assert story.look(others=others(accelerators=8)).scale is None


class TestWhatARunHolds:
    PLAN = make_plan({"sampler": {"replicas": 4}}, limited(maxRuns=9))
    ASKED = Asked(Needs(runs=1, learners=1, accelerators=1), Needs(samplers=1, accelerators=1), 4)
    ALL = Needs(runs=1, samplers=4, learners=1, accelerators=5)

    def test_pods_of_its_samplers_count_though_the_profile_no_longer_has_several(self) -> None:
        world = World(run={}, rays=(make_ray(asked=self.ASKED, samplers=group(2, 2, hosts=2)),))
        fewer = make_plan({"sampler": {"replicas": 2}}, limited(maxRuns=9))
        assert held(world, [], fewer) == self.ALL

    def test_what_its_attempt_was_made_with(self) -> None:
        world = World(run={}, rays=(make_ray(asked=self.ASKED),))
        assert held(world, [], self.PLAN) == self.ALL
        assert held(world, [Attempt(number=1)], self.PLAN) == self.ALL
        assert held(world, [], Refused("LimitExceeded", "")) == self.ALL, "whatever its spec says now"

    def test_nothing_of_an_attempt_that_has_ended(self) -> None:
        story = training()
        attempts = [one.model_copy(update={"end_time": story.now}) for one in story.look().status.attempts]
        assert held(World(run={}, rays=(make_ray(asked=self.ASKED),)), attempts, self.PLAN) == Needs()

    @pytest.mark.parametrize(
        ("wanted", "there", "samplers"),
        [
            (4, group(1, most=4), 4),
            (2, group(1, most=4), 2),
            (2, group(3, most=4), 3),
            (9, group(3, most=6), 6),
        ],
    )
    def test_what_it_grows_to(self, wanted: int, there: Any, samplers: int) -> None:
        plan = make_plan({"sampler": {"replicas": wanted}}, limited())
        ray = make_ray(asked=self.ASKED, samplers=there)
        assert held(World(run={}, rays=(ray,)), [], plan).samplers == samplers

    def test_a_queued_run_keeps_what_it_was_admitted_with(self) -> None:
        plan = make_plan(
            {"sampler": {"replicas": 1}, "scheduling": {"queue": "a", "integration": "label"}}, limited()
        )
        ray = make_ray(asked=self.ASKED, samplers=group(4, most=4))
        assert held(World(run={}, rays=(ray,)), [], plan).samplers == 4

    def test_what_is_decided_counts_at_once(self) -> None:
        story = Story(profiles=[limited(maxRuns=9)])
        plan = make_plan({}, limited(maxRuns=9))
        assert held(story.world, [], plan, story.begin()) == needs_of(plan.roles)
        story = training(profile=limited(maxRuns=9))
        ray = replace(with_group(group(2, most=2)), asked=replace(self.ASKED, most=2))
        story.look(rays=(ray,), pods=all_pods())
        story.set({"sampler": {"replicas": 5}})
        decision = story.look()
        assert held(story.world, decision.status.attempts, plan, decision).samplers == 5


def test_a_claim_of_a_class_that_is_not_allowed() -> None:
    profile = make_profile(default=True, allow={"storage": {"claimClasses": ["shared"]}})
    story = Story(profiles=[profile])
    found = condition(story.settled(claims={"ckpt": Claim(True, "node-disk")}), "ClusterReady")
    assert found is not None
    assert found[:2] == ("False", "ClaimNotAllowed")
    assert found[2].endswith(
        "found 'ckpt' with storage class 'node-disk', allowed by profile shared: claims of shared. Ask the platform "
        "team for more."
    )
    assert kinds(story.look(claims={"ckpt": Claim(True, "shared")}))[-1] == "RayJob"


@pytest.mark.parametrize("shared", [False, True])
def test_learners_of_an_attempt_get_a_claim_that_several_nodes_can_mount(shared: bool) -> None:
    ray_job = next(
        one
        for one in Story().look(claims={"ckpt": Claim(True, shared=shared)}).create
        if one["kind"] == "RayJob"
    )
    workers = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    mounted = [
        one["groupName"]
        for one in workers
        if any("persistentVolumeClaim" in volume for volume in one["template"]["spec"]["volumes"])
    ]
    assert mounted == (["learner"] if shared else [])


def test_the_claim_of_a_servers_weights_is_looked_at_as_well() -> None:
    server = {"url": "http://inference:8000", "folder": "/mnt/weights", "persistentVolumeClaim": "weights"}
    allow = {"storage": {"claimClasses": ["shared"]}, "endpoints": [{"url": "http://inference:8000"}]}
    sampler = {"engine": "endpoint", "replicas": 1, "endpoint": server}
    story = Story({"sampler": sampler}, profiles=[make_profile(default=True, allow=allow)])
    own = {"ckpt": Claim(True, "shared")}
    for seen, reason, words in (
        (Claim(False), "ClaimMissing", "there is no PersistentVolumeClaim 'weights' in this namespace"),
        (
            Claim(True, "node-disk"),
            "ClaimNotAllowed",
            "found 'weights' with storage class 'node-disk', allowed by",
        ),
    ):
        found = condition(story.settled(claims=own | {"weights": seen}), "ClusterReady")
        assert found is not None
        assert found[:2] == ("False", reason)
        assert found[2].startswith(f"spec.sampler.endpoint.persistentVolumeClaim: {words}")
    assert kinds(story.look(claims=own | {"weights": Claim(True, "shared")}))[-1] == "RayJob"
