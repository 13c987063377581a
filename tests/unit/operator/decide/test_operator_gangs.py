from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, Story, make_plan, make_pod, make_profile, make_ray

from rl_operator.decide.diagnose import Diagnosis, diagnose
from rl_operator.decide.gangs import missing_pod_group, with_gang
from rl_operator.decide.shortage import short_of, waits_for_others
from rl_operator.model.decision import Target
from rl_operator.model.gangs import POD_GROUPS
from rl_operator.model.seen import Event, Pod, World
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused

VOLCANO = "PodGroup.v1beta1.scheduling.volcano.sh"
SPEC: dict[str, Any] = {"sampler": {"pools": ["cpu"]}, "learner": {"pools": ["h100"]}, "checkpoint": None}
ALL = "Volcano places all 3 pods of the attempt or none"


def profile(scheduler: str = "volcano", **more: Any) -> dict[str, Any]:
    return make_profile(default=True, pools=GPU_POOLS, gang={"scheduler": scheduler, **more})


def effective(scheduler: str = "volcano") -> Effective:
    return make_plan(SPEC, profile(scheduler, **({"queue": "research"} if scheduler == "kai" else {})))


def pod(role: str, text: str = "", **fields: Any) -> Pod:
    return make_pod(role, ready=False, node="", containers=(), unschedulable=text, **fields)


def found(*pods: Pod, events: tuple[Event, ...] = (), of: Effective | None = None) -> list[Diagnosis]:
    of = of or effective()
    run = {"metadata": {"name": "sums"}, "spec": {}}
    world = World(run=run, pods=pods, events=events, rays=(make_ray(pod_group=VOLCANO),))
    return with_gang(diagnose(world, 1, of), world, 1, of)


class TestWhatSchedulersSay:
    @pytest.mark.parametrize(
        ("text", "short"),
        [
            ("0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", ["nvidia.com/gpu"]),
            ("queue resource quota insufficient: insufficient cpu, insufficient memory", ["cpu", "memory"]),
            (
                "2 node(s) didn't have enough resources: GPUs, 1 node(s) didn't have enough resources: CPU cores.",
                ["CPU cores", "GPUs"],
            ),
            ("resource gap: map[nvidia.com/gpu:{{2 0} {<nil>}  DecimalSI}]", ["nvidia.com/gpu"]),
            ("all nodes are unavailable", []),
        ],
    )
    def test_what_is_short(self, text: str, short: list[str]) -> None:
        assert short_of(text) == short

    @pytest.mark.parametrize(
        "text",
        [
            "pod group is not ready, 3 Pending, 3 minAvailable; Pending: 1 Unschedulable, 2 Schedulable",
            "pre-filter pod sums-1-head cannot find enough sibling pods, current pods number: 1, minMember of group: 3",
            "PodGroup team-a/sums-1 gets rejected due to Pod x is unschedulable even after PostFilter",
            "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins asked "
            "to wait and no plugin rejected pod",
        ],
    )
    def test_who_only_waits_for_others(self, text: str) -> None:
        assert waits_for_others(text)
        assert not waits_for_others("0/4 nodes are available: 4 Insufficient cpu.")
        assert not waits_for_others(f"{text}. 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


class TestReasons:
    def test_the_pool_that_is_short_comes_before_pods_that_wait_for_it(self) -> None:
        waits = "pod group is not ready, 3 Pending, 3 minAvailable; Pending: 1 Unschedulable, 2 Schedulable"
        text = "0/4 nodes are unavailable: 4 Insufficient nvidia.com/gpu."
        first, *rest = found(pod("head", waits), pod("learner", text), pod("sampler", waits))
        assert (first.reason, first.role) == ("Unschedulable", "learner")
        assert first.message == (
            "learner: no node of pool h100 takes the pod: too little nvidia.com/gpu is free (1 asked for per pod) "
            f"[{text}]; {ALL}"
        )
        assert [one.reason for one in rest] == ["GangWaits", "GangWaits"]

    def test_what_is_short_in_the_whole_cluster_is_said_of_who_asks_for_it(self) -> None:
        text = "resource gap: map[nvidia.com/gpu:{{2 0} {<nil>} 2 DecimalSI}]"
        first = found(pod("head", text))[0]
        assert (first.reason, first.role) == ("Unschedulable", "learner")
        assert first.message == f"learner: too little nvidia.com/gpu is free on pool h100 [{text}]; {ALL}"

    def test_what_is_said_of_the_pod_group(self) -> None:
        said = "queue resource quota insufficient: insufficient nvidia.com/gpu"
        event = Event("PodGroup", "ray-sums-1-pg", "Unschedulable", said)
        assert [one.message for one in found(pod("head"), events=(event,))] == [
            f"learner: too little nvidia.com/gpu is free on pool h100 [{said}]; {ALL}"
        ]
        other = replace(event, name="ray-other-1-pg")
        assert [one.reason for one in found(pod("head"), events=(other,))] == ["GangWaits"]

    def test_nobody_has_looked_at_the_pods(self) -> None:
        assert [one.message for one in found(pod("head"), pod("learner"))] == [
            f"head: pod sums-1-head-0 is not placed yet; {ALL}"
        ]

    def test_pods_that_nothing_makes_members(self) -> None:
        one, *rest = found(pod("head", gates=("rltrain.dev/pod-group",)), of=effective("kubernetes"))
        assert (one.reason, rest) == ("NotInGang", [])
        assert "the chart's value gang.schedulers must name kubernetes" in one.message

    def test_pods_that_are_placed_are_not_waited_for(self) -> None:
        assert found(make_pod("head"), make_pod("learner"), make_pod("sampler")) == []

    def test_without_a_gang_nothing_is_added(self) -> None:
        plain = make_plan(SPEC, make_profile(default=True, pools=GPU_POOLS))
        assert found(pod("head"), of=plain) == []


class TestMissing:
    def test_each_scheduler_by_its_own_pod_groups(self) -> None:
        for scheduler, kinds in POD_GROUPS.items():
            assert all(missing_pod_group(effective(scheduler), kind) is None for kind in (None, *kinds))
            refused = missing_pod_group(effective(scheduler), "")
            assert refused is not None
            assert refused.message.startswith(
                f"profile shared has gang.scheduler {scheduler}, and this cluster has no PodGroup"
            )

    def test_kubernetes_before_its_gangs(self) -> None:
        refused = missing_pod_group(effective("kubernetes"), "")
        assert refused is not None
        assert (
            "no PodGroup in scheduling.k8s.io/v1alpha2 or scheduling.k8s.io/v1alpha3: it takes Kubernetes 1.36"
            in refused.message
        )

    def test_a_run_waits_and_begins_by_itself(self) -> None:
        story = Story(SPEC, [profile()])
        decision = story.settled(pod_group="")
        assert not decision.create
        ready = next(one for one in decision.status.conditions if one.type == "ClusterReady")
        assert ready.reason == "GangSchedulerMissing"
        decision = story.look(pod_group=VOLCANO)
        assert [one["kind"] for one in decision.create][-2:] == ["PodGroup", "RayJob"]


class TestEnd:
    def test_the_pod_group_goes_with_its_attempt(self) -> None:
        story = Story(SPEC, [profile()])
        story.look(pod_group=VOLCANO)
        failed = make_ray(deployment_status="Failed", job_status="FAILED", message="x", pod_group=VOLCANO)
        decision = story.look(rays=(failed,))
        assert Target(VOLCANO, "ray-sums-1-pg") in decision.delete

    def test_of_a_job_that_somebody_deleted(self) -> None:
        story = Story(SPEC, [profile("kubernetes")])
        story.look(pod_group="PodGroup.v1alpha2.scheduling.k8s.io")
        decision = story.look(rays=(), pod_group=None)
        assert [target for target in decision.delete if target.kind.startswith("PodGroup")] == [
            Target(kind, "sums-1") for kind in POD_GROUPS["kubernetes"]
        ]

    @pytest.mark.parametrize(
        "after", [profile("kai", queue="research"), profile("none")], ids=["kai", "unreadable"]
    )
    def test_of_a_job_that_somebody_deleted_when_the_profile_had_changed(self, after: dict[str, Any]) -> None:
        story = Story(SPEC, [profile()])
        story.look(pod_group=VOLCANO)
        story.profiles = [after]
        decision = story.look(rays=(), pod_group=None)
        assert {target for target in decision.delete if target.kind.startswith("PodGroup")} == {
            Target(VOLCANO, "ray-sums-1-pg"),
            Target("PodGroup.v1alpha1.scheduling.x-k8s.io", "sums-1"),
            *(Target(kind, "sums-1") for kind in POD_GROUPS["kubernetes"]),
        }

    def test_a_gang_without_room_in_time_costs_no_attempt(self) -> None:
        """YuniKorn ends the application for good, and KubeRay would make pods for it for ever."""
        story = Story({**SPEC, "retry": {"limit": 0}}, [profile("yunikorn")])
        story.begin()
        ended = pod("head", reason="ResourceReservationTimeout")
        decision = story.look(rays=(make_ray(),), pods=(replace(ended, phase="Failed"),))
        assert decision.status.phase != "Failed"
        assert (decision.status.attempts[0].reason or "").startswith("NoRoomForGang: ")
        assert [target.kind for target in decision.delete] == ["RayJob"]
        decision = story.look(rays=(), pods=())
        assert decision.begins
        assert [attempt.number for attempt in decision.status.attempts] == [1, 2]


class TestQueueOfKueue:
    @pytest.mark.parametrize("scheduler", ["volcano", "kai", "yunikorn"])
    def test_beside_a_scheduler_with_queues_it_is_refused(self, scheduler: str) -> None:
        run = {**SPEC, "scheduling": {"queue": "team-a"}}
        refused = plan(Story(run).run, [profile(scheduler, queue="research")], make_plan().settings)
        assert isinstance(refused, Refused)
        assert refused.message == (
            f"spec.scheduling.queue: found 'team-a', allowed by profile shared: null with gang.scheduler {scheduler}, which "
            "has queues and quotas of its own (gang.queue) and would take back what Kueue has given"
        )

    @pytest.mark.parametrize("scheduler", ["schedulerPlugins", "kubernetes"])
    def test_beside_one_without_it_goes(self, scheduler: str) -> None:
        assert (
            make_plan({**SPEC, "scheduling": {"queue": "team-a"}}, profile(scheduler)).profile.gang
            is not None
        )
