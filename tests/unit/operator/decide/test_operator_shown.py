"""What is shown of an attempt that runs: roles, ClusterReady, Training and the phase."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_worlds import (
    NOW,
    Story,
    all_pods,
    condition,
    make_plan,
    make_pod,
    make_ray,
    make_reading,
    make_run,
    running_ray,
)

from rl_api.progress import RoleStatus, RunStatus
from rl_operator.decide.conditions import Conditions
from rl_operator.decide.diagnose import Diagnosis
from rl_operator.decide.look import Look
from rl_operator.decide.status import cluster_condition, role_statuses, shown_phase, training_condition
from rl_operator.model.seen import Pod, Ray, World
from rl_operator.plan.effective import Plan
from rl_operator.plan.refused import Refused

PLAN = make_plan()
GONE = Refused("ProfileMissing", "no such profile")
CLUSTER = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready", cluster="sums-1")


def world(*pods: Pod, **seen: Any) -> World:
    return World(run=make_run(), pods=pods, **seen)


def look_at(
    world: World,
    plan: Any = PLAN,
    roles: dict[str, RoleStatus] | None = None,
    conditions: Conditions | None = None,
    now: datetime = NOW,
) -> Look:
    status = RunStatus(roles=roles or {})
    return Look(world, now, plan, status, status, conditions or Conditions({}, 1, NOW), ())


def roles(
    *pods: Pod,
    plan: Plan = PLAN,
    old: dict[str, RoleStatus] | None = None,
    found: tuple[Diagnosis, ...] = (),
    **seen: Any,
) -> dict[str, tuple[int, int, str | None]]:
    shown = role_statuses(look_at(world(*pods, **seen), plan, old), make_ray(), found)
    return {name: (role.ready, role.desired, role.reason) for name, role in shown.items()}


class TestRoles:
    def test_pods_that_are_ready_and_stay(self) -> None:
        pods = (*all_pods()[:3], make_pod("sampler", index=1, deleting=NOW), make_pod("sampler", attempt=2))
        assert roles(*pods) == {
            "head": (1, 1, None),
            "learner": (1, 1, None),
            "sampler": (1, 2, "starting"),
        }
        assert list(roles()) == ["head", "learner", "sampler"]

    def test_why_some_are_missing(self) -> None:
        own = Diagnosis("OutOfMemory", "of samplers", "sampler")
        every = Diagnosis("QuotaExceeded", "of all", "")
        others = Diagnosis("OutOfMemory", "of learners", "learner")
        refusal = {"scale_refusal": "forbidden"}
        assert roles(*all_pods()[:2], found=(others, own, every), **refusal)["sampler"][2] == "of samplers"
        assert roles(*all_pods()[:2], found=(others, every))["sampler"][2] == "of all"
        assert roles(*all_pods()[:2], found=(others,), **refusal)["sampler"][2] == "forbidden"
        assert roles(found=(own,), **refusal)["head"][2] == "starting"
        assert roles(*all_pods(), found=(own, every))["sampler"][2] is None

    def test_without_a_profile_it_is_what_the_attempt_began_with(self) -> None:
        assert {name: role[1] for name, role in roles(plan=GONE).items()} == {
            "head": 1,
            "learner": 1,
            "sampler": 1,
        }
        old = {"head": RoleStatus(desired=1), "sampler": RoleStatus(desired=4)}
        assert {name: role[1] for name, role in roles(plan=GONE, old=old).items()} == {
            "head": 1,
            "sampler": 4,
        }

    def test_a_spec_that_is_refused_for_another_reason_is_said_elsewhere(self) -> None:
        old = {name: RoleStatus(desired=1) for name in ("head", "learner", "sampler")}
        pods = all_pods()[:3]
        assert roles(*pods, plan=GONE, old=old)["sampler"] == (1, 1, None)
        limited = Refused("LimitExceeded", "too many")
        assert roles(*pods, plan=limited, old=old)["sampler"] == (1, 1, "too many")

    def test_only_samplers_follow_the_spec(self) -> None:
        old = {name: RoleStatus(desired=3) for name in ("head", "learner", "sampler")}
        assert {name: role[1] for name, role in roles(old=old).items()} == {
            "head": 3,
            "learner": 3,
            "sampler": 2,
        }


def ready(
    ray: Ray,
    counts: dict[str, tuple[int, int]],
    found: list[Diagnosis] | None = None,
    plan: Any = PLAN,
    now: Any = NOW,
    pods: tuple[Pod, ...] = (),
) -> tuple[str, str, str]:
    shown = {name: RoleStatus(ready=has, desired=want) for name, (has, want) in counts.items()}
    look = cluster_condition(look_at(world(*pods), plan, shown, now=now), ray, found or [])
    one = look.conditions.get("ClusterReady")
    assert one is not None
    return one.status, one.reason, one.message


ALL = {"head": (1, 1), "learner": (1, 1), "sampler": (2, 2)}
PROBLEM = Diagnosis("ImagePullFailed", "no image", "head")


class TestClusterReady:
    def test_all_pods(self) -> None:
        assert ready(running_ray(), ALL) == ("True", "Ready", "all pods are ready")
        assert ready(running_ray(), ALL, [PROBLEM])[1] == "Ready"
        assert ready(make_ray(), ALL) == ("False", "Starting", "the pods are starting")

    @pytest.mark.parametrize(
        ("counts", "plan", "reason"),
        [
            (ALL | {"sampler": (1, 2)}, PLAN, "SamplersMissing"),
            (ALL | {"sampler": (0, 2)}, PLAN, "PodsMissing"),
            (ALL | {"sampler": (1, 2)}, None, "PodsMissing"),
            (ALL | {"sampler": (1, 2), "learner": (0, 1)}, PLAN, "PodsMissing"),
            (ALL | {"learner": (0, 1)}, PLAN, "PodsMissing"),
            (ALL | {"sampler": (1, 3)}, make_plan({"sampler": {"minReplicas": 2}}), "PodsMissing"),
            (ALL | {"sampler": (2, 3)}, make_plan({"sampler": {"minReplicas": 2}}), "SamplersMissing"),
        ],
    )
    def test_some_are_missing(self, counts: dict[str, tuple[int, int]], plan: Any, reason: str) -> None:
        assert ready(running_ray(), counts, plan=plan)[1] == reason

    def test_what_is_missing_and_why(self) -> None:
        counts = ALL | {"head": (0, 1), "learner": (0, 1)}
        assert ready(running_ray(), counts)[2] == "not all pods are ready: head, learner"
        assert ready(running_ray(), counts, [PROBLEM]) == ("False", "ImagePullFailed", "no image")

    @pytest.mark.parametrize(
        ("ray", "seconds", "pods", "ignored"),
        [
            (make_ray(deployment_status=""), 61, (), True),
            (make_ray(deployment_status=""), 60, (), False),
            (make_ray(deployment_status=""), 61, all_pods()[:1], False),
            (make_ray(deployment_status="", cluster_state="failed"), 61, (), False),
            (make_ray(deployment_status="", created=None), 61, (), False),
            (make_ray(), 61, (), False),
        ],
    )
    def test_kuberay_that_does_nothing(
        self, ray: Ray, seconds: float, pods: tuple[Pod, ...], ignored: bool
    ) -> None:
        now = NOW + timedelta(seconds=seconds)
        found = ready(ray, {"head": (0, 1)}, now=now, pods=pods)
        if ignored:
            sentence = "KubeRay has not taken up RayJob sums-1 for a minute: is the KubeRay operator running?"
            assert found == ("False", "KubeRayNotReacting", sentence)
        else:
            assert found == ("False", "Starting", "the pods are starting")


def training(ray: Ray, before: str | None = None, seconds: float = 0, **seen: Any) -> tuple[str, str, str]:
    """Training, and the phase that goes with it."""
    conditions = Conditions({}, 1, NOW)
    if before is not None:
        conditions = conditions.set("Training", before, "Before", "as before")  # type: ignore[arg-type]
    now = NOW + timedelta(seconds=seconds)
    look = training_condition(look_at(world(**seen), conditions=conditions, now=now), ray)
    one = look.conditions.get("Training")
    assert one is not None
    return one.status, one.reason, shown_phase(look, ray)


@pytest.mark.parametrize(
    ("ray", "before", "seconds", "seen", "shown"),
    [
        (running_ray(), None, 0, {}, ("False", "Starting", "Starting")),
        (running_ray(), "True", 0, {}, ("True", "Before", "Training")),
        (running_ray(), "True", 0, {"reading_error": "no"}, ("False", "Starting", "Starting")),
        (make_ray(), "True", 0, {}, ("False", "Starting", "Starting")),
        (make_ray(), None, 0, {"reading": make_reading()}, ("False", "Starting", "Starting")),
        (running_ray(), None, 0, {"reading": make_reading(attempt=2)}, ("False", "Starting", "Starting")),
        (running_ray(), None, 60, {"reading": make_reading()}, ("True", "Running", "Training")),
        (running_ray(), None, 61, {"reading": make_reading()}, ("Unknown", "DriverSilent", "Training")),
        (
            running_ray(),
            None,
            0,
            {"reading": make_reading(phase="Starting")},
            ("False", "Starting", "Starting"),
        ),
        (
            running_ray(),
            None,
            0,
            {"reading": make_reading(phase="Failed")},
            ("False", "Finishing", "Stopping"),
        ),
        (CLUSTER, None, 0, {}, ("False", "Idle", "Ready")),
        (CLUSTER, None, 0, {"reading": make_reading(attempt=2)}, ("False", "Idle", "Ready")),
        (CLUSTER, None, 60, {"reading": make_reading()}, ("True", "Running", "Training")),
        (CLUSTER, None, 61, {"reading": make_reading()}, ("False", "Idle", "Ready")),
    ],
)
def test_whether_it_trains(
    ray: Ray, before: str | None, seconds: float, seen: dict[str, Any], shown: tuple[str, str, str]
) -> None:
    assert training(ray, before, seconds, **seen) == shown


def test_what_a_driver_that_does_not_answer_is_said_to_do() -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(running_ray(),), pods=all_pods(), reading_error="no connection")
    said = "the driver has not answered yet: no connection"
    assert condition(decision, "Training") == ("False", "Starting", said)
    decision = story.look(reading=make_reading(phase="Starting"), reading_error="")
    assert condition(decision, "Training") == ("False", "Starting", "the driver loads model and task")
    decision = story.look(reading=make_reading(phase="Failed"))
    assert condition(decision, "Training") == ("False", "Finishing", "the driver has finished")
