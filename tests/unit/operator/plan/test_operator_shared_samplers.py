"""Samplers that live on learners' devices: no pods of their own, room for them in learners' pods, and what is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    Story,
    all_pods,
    condition,
    container,
    group,
    groups,
    make_plan,
    make_pod,
    make_profile,
    make_reading,
    refused,
    running_ray,
)

from rl_api.base import amount
from rl_api.placement_status import PlacementStatus
from rl_operator.model.needs import Needs
from rl_operator.model.seen import Pod, QueuePriority
from rl_operator.plan.limits import needs_of
from rl_operator.render.budget import disruption_budget
from rl_operator.render.workload import run_workload, sampler_workloads

GPU = make_profile(default=True, pools=GPU_POOLS)
COLLOCATED: dict[str, Any] = {"placement": {"mode": "collocated"}, "learner": {"replicas": 2}}
HYBRID: dict[str, Any] = {
    "placement": {"mode": "hybrid", "sharedSamplers": 1},
    "sampler": {"replicas": 3},
    "learner": {"replicas": 2},
}


def asked(spec: dict[str, Any], profile: dict[str, Any] | None = None) -> dict[str, str]:
    """What a learner's pod asks for."""
    found: dict[str, str] = container(groups(make_plan(spec, profile))["learner"])["resources"]["requests"]
    return found


def test_a_collocated_sampler_has_no_pod_of_its_own() -> None:
    effective = make_plan(COLLOCATED)
    assert list(groups(effective)) == ["head", "learner"]
    assert (effective.samplers, effective.shared, effective.elastic) == (2, 2, False)
    assert needs_of(effective.roles) == replace(
        needs_of(make_plan({"learner": {"replicas": 2}}).roles), samplers=0, storage=60 * 2**30
    )
    assert disruption_budget(effective)["spec"]["minAvailable"] == 3
    assert list(groups(make_plan({}))) == ["head", "learner", "sampler"]


def test_with_hybrid_the_others_have_pods_and_all_of_them_begin() -> None:
    found = groups(make_plan(HYBRID))
    sizes = {
        name: [one[key] for key in ("replicas", "minReplicas", "maxReplicas")]
        for name, one in found.items()
        if name != "head"
    }
    assert sizes == {"learner": [2, 2, 2], "sampler": [2, 2, 2]}
    elastic = groups(make_plan({"sampler": {"replicas": 3, "minReplicas": 1}}))["sampler"]
    assert (elastic["replicas"], elastic["maxReplicas"]) == (1, 3)


@pytest.mark.parametrize(
    ("residency", "memory"), [("keep", "10240Mi"), ("auto", "10240Mi"), ("swap", "6744Mi")]
)
def test_memory_of_a_pod_that_both_live_in(residency: str, memory: str) -> None:
    parts: dict[str, Any] = {
        "placement": {"mode": "collocated", "residency": residency},
        "sampler": {"replicas": 1, "threads": 4, "resources": {"memory": "4Gi"}},
        "learner": {"threads": 2, "resources": {"memory": "6Gi"}},
    }
    assert asked(parts)["memory"] == memory
    # What is moved off accelerators goes to main memory, which holds both then.
    assert asked(parts | {"model": {"dtype": "bfloat16"}}, GPU)["memory"] == "10240Mi"


def test_memory_that_nobody_says_is_the_profiles_for_each_of_the_two() -> None:
    parts: dict[str, Any] = {"placement": {"mode": "collocated"}, "sampler": {"replicas": 1}}
    assert asked(parts, GPU)["memory"] == f"{2 * 16 * 1024}Mi"
    assert asked({**parts, "placement": {}}, GPU)["memory"] == "16Gi"


def test_cores_and_accelerators_are_used_in_turn() -> None:
    parts: dict[str, Any] = {
        "placement": {"mode": "collocated"},
        "sampler": {"replicas": 1, "threads": 4},
        "learner": {"threads": 2},
    }
    for profile, cpu, gpus in ((None, "200m", None), (GPU, "4000m", "1")):
        found = groups(make_plan(parts, profile))["learner"]
        requests = container(found)["resources"]["requests"]
        assert (requests["cpu"], requests.get("nvidia.com/gpu")) == (cpu, gpus)
        assert (found["rayStartParams"]["num-cpus"], found["rayStartParams"]["num-gpus"]) == (
            "4",
            gpus or "0",
        )


def test_a_pod_of_several_learner_processes_has_room_for_a_sampler_beside_each() -> None:
    parts: dict[str, Any] = {
        "placement": {"mode": "collocated"},
        "sampler": {"replicas": 4, "threads": 3, "engine": "vllm"},
        "learner": {"replicas": 1, "resources": {"accelerators": 4}},
    }
    found = groups(make_plan(parts, GPU))["learner"]
    assert found["rayStartParams"]["num-cpus"] == "12"
    assert container(found)["resources"]["requests"]["memory"] == f"{5 * 16 * 1024}Mi"
    assert container(found)["resources"]["requests"]["nvidia.com/gpu"] == "4"


def test_code_of_the_users_and_its_secrets_go_where_samplers_are() -> None:
    task = {"environment": "reasoning-gym", "secrets": ["judge"]}
    shared = groups(make_plan({**COLLOCATED, "task": task}))["learner"]["template"]["spec"]
    alone = groups(make_plan({"task": task}))["learner"]["template"]["spec"]
    assert "judge" in str(shared["volumes"])
    assert "judge" not in str(alone["volumes"])
    strict = groups(make_plan({**COLLOCATED, "task": task | {"isolation": "strict"}}))["learner"]
    assert len(strict["template"]["spec"]["containers"]) == 2


@pytest.mark.parametrize(
    ("accelerators", "samplers", "code"),
    [
        (1, 1, ("1500m", "1Gi", "2Gi")),
        (4, 4, ("6000m", "4096Mi", "8192Mi")),
        (4, 2, ("3000m", "2048Mi", "4096Mi")),
    ],
)
def test_one_container_for_the_users_code_serves_all_samplers_of_a_pod(
    accelerators: int, samplers: int, code: tuple[str, str, str]
) -> None:
    parts: dict[str, Any] = {
        "task": {
            "environment": "reasoning-gym",
            "isolation": "strict",
            "resources": {"cpu": 1.5, "memory": "1Gi", "ephemeralStorage": "2Gi"},
        },
        "placement": {"mode": "collocated"},
        "sampler": {"replicas": samplers, "engine": "vllm"},
        "learner": {"replicas": 1, "resources": {"accelerators": accelerators}},
    }
    found = groups(make_plan(parts, GPU))["learner"]["template"]["spec"]["containers"][1]["resources"][
        "requests"
    ]
    assert (found["cpu"], found["memory"], found["ephemeral-storage"]) == code
    # Its disk counts for the limits of a run and a namespace.
    role = make_plan(parts, GPU).role("learner")
    assert role.pod.storage - amount(role.ephemeral_storage) == samplers * 2 * 2**30


def test_learners_pods_are_alike_so_that_each_has_what_samplers_need() -> None:
    """One worker group has one template: docs/security.md says so."""
    parts: dict[str, Any] = {
        **{"placement": {"mode": "hybrid", "sharedSamplers": 1}, "learner": {"replicas": 4}},
        **{"sampler": {"replicas": 2}, "secrets": ["bucket"]},
        "checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": "s3://bucket/runs"}},
    }
    for isolation, holders in (("shared", ["ray"]), ("strict", ["user-code"])):
        task = {"environment": "reasoning-gym", "secrets": ["judge"], "isolation": isolation}
        learner = groups(make_plan({**parts, "task": task}))["learner"]
        assert learner["replicas"] == 4
        spec = learner["template"]["spec"]
        volumes = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
        found = {
            name: sorted(one["name"] for one in spec["containers"] if mounts(one, volumes, name))
            for name in ("judge", "bucket")
        }
        assert found == {"judge": holders, "bucket": ["ray"]}


def mounts(one: dict[str, Any], volumes: dict[str, str], secret: str) -> bool:
    """Whether a container has a Secret among its volumes."""
    return any(volumes.get(mount["name"]) == secret for mount in one["volumeMounts"])


@pytest.mark.parametrize(
    ("placement", "place"),
    [
        ({"mode": "collocated"}, ([], None)),
        ({"sharedSamplers": 2}, ([], None)),
        ({"sharedSamplers": 1}, (["cpu"], 0)),
        ({}, (["cpu"], 0)),
    ],
)
def test_a_profiles_place_of_samplers_pods_is_not_meant_for_those_without(
    placement: dict[str, Any], place: tuple[list[str], int | None]
) -> None:
    sampler = {"pools": ["cpu"], "resources": {"accelerators": 0, "cpu": 2}}
    profile = make_profile(default=True, pools=GPU_POOLS, defaults={"sampler": sampler})
    spec: dict[str, Any] = {"placement": placement, "learner": {"replicas": 2, "pools": ["h100"]}}
    found = make_plan(spec, profile).spec.sampler
    assert found.resources is not None
    assert (list(found.pools), found.resources.accelerators, found.resources.cpu) == (*place, 2)
    collocated = {**spec, "placement": {"mode": "collocated"}, "sampler": {"pools": ["cpu"]}}
    assert (
        "spec.sampler.pools: found [cpu], allowed where all samplers share"
        in refused(collocated, profile).message
    )


def test_a_queue_is_asked_for_the_pods_that_there_are() -> None:
    profile = make_profile(default=True, queue="team-a")
    effective, priority = make_plan(COLLOCATED, profile), QueuePriority()
    sets = run_workload(effective, priority)["spec"]["podSets"]
    assert [(one["name"], one["count"]) for one in sets] == [("head", 1), ("learner", 2)]
    assert sampler_workloads(effective, priority, effective.role("learner").placed, {0: 1}) == []
    sets = run_workload(make_plan(HYBRID, profile), priority)["spec"]["podSets"]
    assert [(one["name"], one["count"]) for one in sets] == [("head", 1), ("learner", 2), ("sampler", 2)]


def test_samplers_in_learners_pods_count_for_the_limit_of_samplers() -> None:
    limited = make_profile(default=True, limits={"maxSamplers": 1})
    sentence = "spec.sampler.replicas: found 2, allowed: at most 1, the limit of profile shared"
    assert sentence in refused(COLLOCATED, limited).message
    assert make_plan(COLLOCATED, make_profile(default=True, limits={"maxSamplers": 2})).samplers == 2
    # What pods take is of pods that there are.
    assert needs_of(make_plan(HYBRID).roles) == Needs(1, 2, 2, 0, 5 * 20 * 2**30)


def shown(story: Story, pods: tuple[Pod, ...], **more: Any) -> tuple[int, int, str | None]:
    """Samplers that are ready and wanted, and why some are missing."""
    role = story.look(pods=pods, **more).status.roles["sampler"]
    return role.ready, role.desired, role.reason


def test_samplers_are_shown_with_those_in_learners_pods() -> None:
    story = Story(HYBRID)
    decision = story.begin()
    assert decision.status.roles["sampler"].desired == 3
    assert decision.status.placement == PlacementStatus(
        mode="hybrid", samplers=3, shared=1, learners=2, reason="placement.mode is hybrid"
    )
    head, first, second = make_pod("head"), make_pod("learner"), make_pod("learner", index=1)
    own = (make_pod("sampler"), make_pod("sampler", index=1))
    rays = (running_ray(samplers=group(2, 2)),)
    assert shown(story, (head, *own), rays=rays) == (2, 3, "starting")
    assert shown(story, (head, first, *own)) == (3, 3, None)
    assert shown(story, (head, first, second, own[0])) == (2, 3, "starting")
    decision = story.look()
    assert condition(decision, "ClusterReady") == ("False", "PodsMissing", "not all pods are ready: sampler")
    decision = story.look(pods=(head, first, second, *own), reading=make_reading())
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    assert decision.scale is None


def test_a_collocated_run_begins_trains_and_keeps_its_samplers() -> None:
    story = Story({**COLLOCATED, "sampler": {"minReplicas": 1}})
    story.begin()
    pods = (make_pod("head"), make_pod("learner"), make_pod("learner", index=1))
    decision = story.look(rays=(running_ray(),), pods=pods, reading=make_reading())
    assert {name: (role.ready, role.desired) for name, role in decision.status.roles.items()} == {
        "head": (1, 1),
        "learner": (2, 2),
        "sampler": (2, 2),
    }
    story.set({"sampler": {"replicas": 1}})
    decision = story.look()
    assert decision.scale is None
    assert decision.status.roles["sampler"].reason == (
        "spec.sampler.replicas is 1 now; this attempt began with 2, and keeps them, as where samplers share learners' "
        "devices all stay as many as they are"
    )


@pytest.mark.parametrize(
    ("placement", "begins", "wanted"),
    [
        ({"sharedSamplers": 1}, 3, (1, 2, 5, 3)),
        ({"mode": "hybrid"}, 4, (2, 3, 6, 4)),
        ({"mode": "hybrid", "sharedSamplers": 1}, 3, (2, 5, 3)),
        ({"sharedSamplers": 1}, 1, (3, 1)),
    ],
)
def test_an_attempt_with_shared_samplers_keeps_those_it_began_with(
    placement: dict[str, Any], begins: int, wanted: tuple[int, ...]
) -> None:
    spec = {"placement": placement, "sampler": {"replicas": begins}, "learner": {"replicas": 2}}
    story = Story(spec)
    began = story.begin().status.placement
    assert began is not None
    own = begins - began.shared
    pods = tuple(make_pod("learner", index=index) for index in range(2))
    pods = (make_pod("head"), *pods, *(make_pod("sampler", index=index) for index in range(own)))
    rays = (running_ray(samplers=group(own, own)),) if own else (running_ray(),)
    story.look(rays=rays, pods=pods, reading=make_reading())
    for replicas in wanted:
        story.set({"sampler": {"replicas": replicas}})
        reason = (
            f"spec.sampler.replicas is {replicas} now; this attempt began with {begins}, and keeps them, as where samplers "
            "share learners' devices all stay as many as they are"
        )
        # The status of one look is what the next one knows.
        for _ in range(3):
            decision = story.look()
            assert decision.scale is None
            role, shown_placement = decision.status.roles["sampler"], decision.status.placement
            assert (role.ready, role.desired) == (begins, begins)
            assert role.reason == (None if replicas == begins else reason)
            assert shown_placement is not None
            assert (shown_placement.samplers, shown_placement.shared) == (begins, began.shared)


def test_what_the_driver_says_of_a_step_is_shown_beside_its_progress() -> None:
    story = Story(COLLOCATED)
    story.begin()
    pods = (make_pod("head"), make_pod("learner"), make_pod("learner", index=1))
    story.look(rays=(running_ray(),), pods=pods, reading=make_reading())

    def says(step: int, seconds: float) -> PlacementStatus | None:
        said = PlacementStatus(
            mode="collocated",
            samplers=9,
            learners=9,
            predicted_step_seconds=4.5,
            measured_step_seconds=seconds,
        )
        reading = make_reading(step, time=story.now)
        progress = reading.progress.model_copy(update={"placement": said})
        decision = story.look(reading=replace(reading, progress=progress))
        assert decision.status.progress is not None
        assert decision.status.progress.placement is None
        return decision.status.placement

    story.wait(60)
    known = PlacementStatus(
        **{"mode": "collocated", "samplers": 2, "shared": 2, "learners": 2},
        **{
            "predicted_step_seconds": 4.5,
            "measured_step_seconds": 5.0,
            "reason": "placement.mode is collocated",
        },
    )
    assert says(8, 5.0) == known
    # Figures alone wait to be written.
    story.wait(1)
    assert says(9, 5.5) == known
    story.wait(60)
    assert says(10, 5.5) == known.model_copy(update={"measured_step_seconds": 5.5})


@pytest.mark.parametrize(
    ("placement", "mode", "reason"),
    [
        ({}, "disaggregated", "placement.mode is auto: each sampler has devices of its own"),
        ({"sharedSamplers": 1}, "hybrid", "placement.mode is auto, and placement.sharedSamplers is 1"),
        ({"sharedSamplers": 2}, "collocated", "placement.mode is auto, and placement.sharedSamplers is 2"),
        ({"mode": "disaggregated", "partGroups": 4}, "disaggregated", "placement.mode is disaggregated"),
    ],
)
def test_what_a_mode_comes_to(placement: dict[str, Any], mode: str, reason: str) -> None:
    story = Story({"placement": placement, "learner": {"replicas": 2}})
    found = story.begin().status.placement
    assert found is not None
    assert (found.mode, found.shared, found.samplers, found.reason) == (
        mode,
        placement.get("sharedSamplers", 0),
        2,
        reason,
    )
    assert found.part_groups == placement.get("partGroups")


def test_samplers_that_may_come_and_go_are_shown_as_many_as_are_wanted() -> None:
    story = Story()
    story.begin()
    story.set({"sampler": {"replicas": 4}})
    found = story.look(rays=(running_ray(),), pods=all_pods()).status.placement
    assert found is not None
    assert (found.samplers, found.shared) == (4, 0)


def test_a_program_of_the_users_says_nothing_of_it() -> None:
    command = {"trainer": {"kind": "command", "command": ["python", "train.py"]}}
    assert Story(command).begin().status.placement is None
