"""Samplers of an attempt: fewest at the start, as many as the spec says from then on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    NOW,
    Story,
    all_pods,
    condition,
    group,
    make_pod,
    make_profile,
    make_ray,
    make_reading,
    pods,
    training,
    with_group,
)

from rl_operator.decide.scaling import scale, surplus
from rl_operator.model.decision import Scale
from rl_operator.model.seen import Pod

SEVERAL: dict[str, Any] = {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2}


class TestDecision:
    def test_growth_waits_until_the_job_runs(self) -> None:
        story = Story()
        story.begin()
        assert story.look(rays=(make_ray(samplers=group()),), pods=pods()).scale is None
        decision = story.look(rays=(with_group(group()),), pods=pods())
        assert decision.scale == Scale(group(), 2)
        assert [(note.reason, note.message) for note in decision.notes if note.reason == "Scaling"] == [
            ("Scaling", "2 instead of 1 samplers are wanted in sums-1-abcde")
        ]
        story.settled(rays=(with_group(group(2)),), pods=pods(2), reading=make_reading())

    def test_an_interactive_cluster_grows_when_it_is_ready(self) -> None:
        story = Story({"workload": "Cluster"})
        story.look()
        cluster: dict[str, Any] = {"kind": "RayCluster", "deployment_status": "", "samplers": group()}
        assert story.look(rays=(make_ray(**cluster),), pods=pods()).scale is None
        ready = make_ray(**cluster, cluster_state="ready")
        assert story.look(rays=(ready,), pods=pods()).scale == Scale(group(), 2)

    def test_the_live_spec_counts(self) -> None:
        story = training()
        story.look(rays=(with_group(group(2)),), pods=pods(2))
        story.set({"sampler": {"replicas": 5}})
        decision = story.look()
        assert decision.scale == Scale(group(2), 5)
        assert decision.status.roles["sampler"].desired == 5
        story.set({"sampler": {"replicas": 1}})
        decision = story.look()
        assert decision.scale == Scale(group(2), 1, ("sums-1-sampler-0",))
        decision = story.settled(rays=(with_group(group(1)),), pods=pods(1))
        assert decision.status.roles["sampler"].desired == 1
        assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")

    def test_a_queue_has_admitted_a_fixed_number(self) -> None:
        story = Story({"scheduling": {"queue": "team-a", "integration": "label"}})
        created = story.look().create[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]
        assert (created["replicas"], created["minReplicas"], created["maxReplicas"]) == (2, 2, 2)
        ray = with_group(group(2))
        assert story.look(rays=(ray,), pods=all_pods(), reading=make_reading()).scale is None
        story.set({"sampler": {"replicas": 3}})
        decision = story.settled()
        assert decision.scale is None
        assert decision.status.roles["sampler"].desired == 2
        assert decision.status.roles["sampler"].reason == (
            "spec.sampler.replicas is 3 now; a queue has admitted this attempt with 2, and it keeps them"
        )

    def test_samplers_of_several_pods_keep_their_number(self) -> None:
        story = Story({"sampler": SEVERAL | {"replicas": 1}})
        story.look()
        ray = with_group(group(1, 1, hosts=2))
        assert story.look(rays=(ray,), pods=all_pods(), reading=make_reading()).scale is None
        story.set({"sampler": SEVERAL | {"replicas": 2}})
        decision = story.settled()
        assert decision.scale is None
        assert decision.status.roles["sampler"].desired == 1
        assert decision.status.roles["sampler"].reason == (
            "spec.sampler.replicas is 2 now; this attempt began with 1, and keeps them, as samplers of several pods "
            "stay as many as they are"
        )

    def test_samplers_of_several_pods_are_counted_as_the_spec_counts_them(self) -> None:
        story = Story({"sampler": SEVERAL | {"replicas": 3}})
        story.look()
        counts = []
        for ready in (1, 5, 6):
            samplers = [make_pod("sampler", index=index, ready=index < ready) for index in range(6)]
            ray = with_group(group(3, 3, hosts=2))
            role = story.look(rays=(ray,), pods=(*all_pods()[:2], *samplers)).status.roles["sampler"]
            counts.append((role.ready, role.desired, role.reason))
        assert counts == [(0, 3, "starting"), (2, 3, "starting"), (3, 3, None)]

    def test_an_attempt_keeps_samplers_of_several_pods_that_its_profile_no_longer_has(self) -> None:
        profile = make_profile(default=True, defaults={"sampler": {"podsPerReplica": 2}})
        stages = {"engine": "vllm", "pipelineParallelSize": 2, "replicas": 2}
        story = Story({"sampler": stages}, [profile])
        story.look()
        ray = with_group(group(2, 2, hosts=2))
        story.settled(rays=(ray,), pods=pods(4), reading=make_reading())
        story.profiles = [make_profile(default=True)]
        story.set({"sampler": stages | {"replicas": 5}})
        decision = story.settled()
        role = decision.status.roles["sampler"]
        assert (decision.scale, role.ready, role.desired) == (None, 2, 2)
        assert role.reason is not None
        assert role.reason.startswith(
            "spec.sampler.replicas is 5 now; this attempt began with 2, and keeps them"
        )

    def test_a_number_above_the_limit_is_not_followed_and_says_so(self) -> None:
        story = training(profile=make_profile(default=True, limits={"maxSamplers": 3}))
        story.look(rays=(with_group(group(2)),), pods=pods(2))
        story.set({"sampler": {"replicas": 9}})
        decision = story.settled()
        assert decision.scale is None
        sampler = decision.status.roles["sampler"]
        assert (sampler.ready, sampler.desired) == (2, 2)
        assert sampler.reason == (
            "spec.sampler.replicas: found 9, allowed: at most 3, the limit of profile shared. "
            "Ask the platform team for more."
        )
        assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")

    def test_a_run_that_is_being_suspended_does_not_grow(self) -> None:
        story = training()
        story.set({"suspend": True})
        assert story.look().scale is None

    @pytest.mark.parametrize(
        ("pod", "reason"),
        [
            (make_pod("sampler", index=1, ready=False), "starting"),
            (
                make_pod("sampler", index=1, ready=False, unschedulable="0/2 nodes: 2 Insufficient cpu."),
                "sampler: no node of pool default takes the pod: too little cpu is free "
                "[0/2 nodes: 2 Insufficient cpu.]",
            ),
        ],
    )
    def test_growth_that_is_blocked_is_said_and_disturbs_nothing(self, pod: Pod, reason: str) -> None:
        story = training()
        decision = story.settled(rays=(with_group(group(2)),), pods=(*pods(1), pod))
        assert condition(decision, "ClusterReady") == (
            "True",
            "SamplersMissing",
            f"1 of 2 samplers are ready, enough to train: {reason}",
        )
        assert decision.status.roles["sampler"].reason == reason
        assert decision.status.phase == "Training"
        assert all(attempt.end_time is None for attempt in decision.status.attempts)

    def test_growth_that_a_quota_blocks_is_said(self) -> None:
        story = training()
        quota = (
            'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=3, limited: pods=3'
        )
        decision = story.settled(rays=(with_group(group(2), cluster_reason=quota),), pods=pods(1))
        assert condition(decision, "ClusterReady") is not None
        assert "enough to train: a quota of this namespace is used up: exceeded quota: team" in str(
            condition(decision, "ClusterReady")
        )

    def test_a_refusal_is_shown_and_told_once(self) -> None:
        story = training()
        decision = story.look(scale_refusal="KubeRay cannot be asked for 2: rayclusters is forbidden")
        assert decision.scale == Scale(group(), 2), "it is tried again"
        assert decision.notes == ()
        assert decision.status.roles["sampler"].reason == (
            "KubeRay cannot be asked for 2: rayclusters is forbidden"
        )

    def test_fewer_than_the_fewest_is_not_ready(self) -> None:
        story = training({"sampler": {"replicas": 3, "minReplicas": 2}})
        decision = story.look(rays=(with_group(group(3, 3)),), pods=pods(1))
        assert condition(decision, "ClusterReady") == (
            "False",
            "PodsMissing",
            "not all pods are ready: sampler",
        )


class TestSurplus:
    def test_pods_that_do_nothing_yet_go_first_then_the_youngest(self) -> None:
        found = [
            make_pod("sampler", index=0, created=NOW),
            make_pod("sampler", index=1, created=NOW + timedelta(minutes=2)),
            make_pod("sampler", index=2, created=NOW + timedelta(minutes=1)),
            make_pod("sampler", index=3, created=NOW, ready=False),
        ]
        names = [f"sums-1-sampler-{index}" for index in (3, 1, 2, 0)]
        for count in range(5):
            assert surplus(found, count) == tuple(names[:count])
        assert surplus(found, -1) == ()

    def test_the_youngest_is_one_that_says_when_it_was_made(self) -> None:
        found = [make_pod("sampler", index=0), make_pod("sampler", index=1, created=NOW)]
        assert surplus(found, 1) == ("sums-1-sampler-1",)
        alike = [make_pod("sampler", index=index, created=NOW) for index in (1, 0)]
        assert surplus(alike, 1) == ("sums-1-sampler-0",)

    def test_only_fewer_name_pods_and_only_samplers(self) -> None:
        assert scale(group(2), 2, pods(3)) is None
        assert scale(group(2), 4, pods(5)) == Scale(group(2), 4)
        assert scale(group(2), 1, pods(2)) == Scale(group(2), 1, ("sums-1-sampler-0",))

    def test_pods_that_go_already_are_not_counted(self) -> None:
        found = (*pods(2), make_pod("sampler", index=2, deleting=NOW))
        assert scale(group(3), 2, found) == Scale(group(3), 2)
