"""Workers of the task, which are simulators and models that score: pods of their own, as the other roles have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    SETTINGS,
    Story,
    all_pods,
    condition,
    container,
    failed_ray,
    groups,
    kinds,
    make_plan,
    make_pod,
    make_profile,
    make_run,
    refused,
    running_ray,
)

from rl_operator.decide.diagnose import out_of_memory
from rl_operator.model.names import CODE_CONTAINER
from rl_operator.model.needs import Needs, Others
from rl_operator.model.parse import parse_ray
from rl_operator.model.seen import Container, QueuePriority
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.limits import needs_of
from rl_operator.render.objects import run_objects
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job
from rl_operator.render.workload import run_workload

GAME = {"environment": "tool-use", "name": "calculator", "rewards": [{"rule": "model"}]}
SIMULATORS = {"replicas": 3, "cpu": 0.5}
JUDGE = {"source": "org/judge", "replicas": 2, "cpu": 2}
BOTH: dict[str, Any] = {"task": GAME | {"simulators": SIMULATORS, "rewardModel": JUDGE}}
PROFILE = make_profile(default=True, pools=GPU_POOLS)


def judged(**model: Any) -> dict[str, Any]:
    return {"task": GAME | {"rewardModel": JUDGE | model}}


def test_each_has_a_pod_in_a_worker_group_of_its_kind() -> None:
    found = groups(make_plan(BOTH))
    assert list(found) == ["head", "learner", "sampler", "simulator", "reward-model"]
    for name, count in (("simulator", 3), ("reward-model", 2)):
        group = found[name]
        assert [group[field] for field in ("replicas", "minReplicas", "maxReplicas")] == [count] * 3
        assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {name: 1}
        assert group["template"]["metadata"]["labels"]["rltrain.dev/role"] == name
    asked = container(found["reward-model"])["resources"]["requests"]
    assert (asked["cpu"], asked["memory"]) == ("2000m", "2648Mi")
    head, alone = found["head"], groups(make_plan())["head"]
    assert head["rayStartParams"] == alone["rayStartParams"]
    assert container(head)["resources"] == container(alone)["resources"], "it has none of them"


def test_they_are_counted_with_the_run() -> None:
    effective = make_plan(BOTH)
    pods = {one["name"]: one["count"] for one in run_workload(effective, QueuePriority())["spec"]["podSets"]}
    assert pods == {"head": 1, "learner": 1, "sampler": 1, "simulator": 3, "reward-model": 2}
    more = needs_of(effective.roles).storage - needs_of(make_plan().roles).storage
    assert more == (3 * 5 + 2 * 20) * 2**30


@pytest.mark.parametrize("render", [ray_job, ray_cluster])
@pytest.mark.parametrize("accelerators", [0, 1])
def test_what_an_attempt_takes_is_read_with_them(accelerators: int, render: Any) -> None:
    own = {"simulators": SIMULATORS, "rewardModel": JUDGE | {"accelerators": accelerators}}
    effective = make_plan({"task": GAME | own}, PROFILE)
    ray = parse_ray(render(effective, 1))
    assert needs_of(effective.roles).accelerators == 3 + 2 * accelerators
    assert ray.asked.with_samplers(ray.asked.most) == needs_of(effective.roles)
    assert (needs_of(effective.roles).task_workers, ray.groups) == (
        5,
        {"learner", "sampler", "simulator", "reward-model"},
    )


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {"maxTaskWorkers": 4},
            "spec.task: found 5 task workers (simulators: 3, rewardModel: 2), allowed: at most 4, the limit of profile "
            "shared",
        ),
        (
            {"perNamespace": {"maxTaskWorkers": 4}},
            "spec: found 5 task workers, allowed: at most 4, the limit of profile shared for a namespace",
        ),
    ],
)
def test_a_profile_limits_them(limits: dict[str, Any], sentence: str) -> None:
    found = refused(BOTH, make_profile(default=True, limits=limits))
    assert (found.reason, found.message) == ("LimitExceeded", f"{sentence}. Ask the platform team for more.")
    most = {"maxTaskWorkers": 5, "perNamespace": {"maxTaskWorkers": 5}}
    assert make_plan(BOTH, make_profile(default=True, limits=most)).role("simulator").replicas == 3
    assert make_plan({}, make_profile(default=True, limits={"maxTaskWorkers": 0})).samplers == 2


def test_they_wait_for_those_of_others_of_the_namespace() -> None:
    profile = make_profile(default=True, limits={"perNamespace": {"maxTaskWorkers": 6}})
    story = Story(BOTH, profiles=[profile])
    waiting = condition(story.settled(others=Others(Needs(task_workers=2))), "ClusterReady")
    assert waiting is not None
    assert waiting[1] == "NamespaceLimit"
    assert "would have 7 task workers with this one, allowed at once by profile shared: 6;" in waiting[2]
    assert kinds(story.look(others=Others(Needs(task_workers=1))))[-1] == "RayJob"


@pytest.mark.parametrize(
    ("pool", "said", "expected"),
    [
        ({}, {}, ("5Gi", "20Gi")),
        ({"ephemeralStorage": "30Gi"}, {}, ("30Gi", "30Gi")),
        ({"ephemeralStorage": "30Gi"}, {"ephemeralStorage": "2Gi"}, ("2Gi", "2Gi")),
    ],
)
def test_they_have_little_disk_unless_somebody_says_more(
    pool: dict[str, Any], said: dict[str, Any], expected: tuple[str, str]
) -> None:
    profile = make_profile(default=True, pools=[GPU_POOLS[0], {"name": "cpu"} | pool])
    own = {"task": GAME | {"simulators": SIMULATORS | said, "rewardModel": JUDGE | said}}
    effective = make_plan(own, profile)
    found = tuple(effective.role(name).ephemeral_storage for name in ("simulator", "reward-model"))
    assert found == expected
    less = plan(make_run(BOTH), [], replace(SETTINGS, ephemeral_storage="3Gi"))
    assert isinstance(less, Effective)
    assert less.role("simulator").ephemeral_storage == "3Gi"


def test_that_there_are_pools_and_disks_for_them_makes_no_other_run() -> None:
    """Pinned values: what an older version has begun is the same run for the next."""
    assert (
        make_plan({"task": GAME | {"rewards": [{}], "simulators": SIMULATORS}}).digest == "aa13c2b918cec5c0"
    )
    assert make_plan(judged()).digest == "f065272bdc547923"
    assert make_plan(judged(ephemeralStorage="9Gi")).digest != "f065272bdc547923"
    plain = make_profile(default=True)
    limits = ({"maxTaskWorkers": 9}, {"perNamespace": {"maxTaskWorkers": 9}})
    digests = {
        make_plan({}, one).profile_digest
        for one in (plain, *(make_profile(default=True, limits=some) for some in limits))
    }
    assert len(digests) == 3
    assert make_plan({}, plain).profile_digest == "51bedbfad8b38c03"


def test_a_program_of_the_users_has_none_of_them() -> None:
    program = {"kind": "command", "command": ["python", "train.py"]}
    assert list(groups(make_plan(BOTH | {"trainer": program}))) == ["head"]


def test_they_go_where_the_head_does_unless_they_name_pools() -> None:
    beside = make_plan(BOTH, PROFILE)
    assert beside.role("simulator").pools == beside.role("head").pools
    pools = [*GPU_POOLS, {"name": "games", "nodeSelector": {"disk": "fast"}}]
    simulators = {"task": GAME | {"simulators": SIMULATORS | {"pools": ["games"]}, "rewardModel": JUDGE}}
    effective = make_plan(simulators, make_profile(default=True, pools=pools))
    spec = groups(effective)["simulator"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert effective.role("reward-model").pools == effective.role("head").pools


def test_a_model_that_scores_may_have_an_accelerator() -> None:
    """Its pod is what a learner's or a sampler's would be that has one."""
    effective = make_plan(judged(accelerators=1), PROFILE)
    found = groups(effective)
    group, learner = found["reward-model"], found["learner"]
    assert group["rayStartParams"]["num-gpus"] == "1"
    ray, other = container(group), container(learner)
    for kind in ("requests", "limits"):
        assert ray["resources"][kind]["nvidia.com/gpu"] == "1" == other["resources"][kind]["nvidia.com/gpu"]
    assert (ray["image"], ray["env"]) == (other["image"], other["env"]), "no word that hides devices"
    assert (ray["resources"]["requests"]["cpu"], ray["resources"]["requests"]["memory"]) == (
        "2000m",
        "2648Mi",
    )
    pod = group["template"]["spec"]
    for field in ("nodeSelector", "tolerations"):
        assert pod[field] == learner["template"]["spec"][field]
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert effective.role("reward-model").ephemeral_storage == effective.role("learner").ephemeral_storage
    plain = make_plan(judged(), PROFILE)
    assert plain.role("reward-model").ephemeral_storage == "20Gi"
    assert container(groups(plain)["reward-model"])["image"] == container(found["head"])["image"]
    assert effective.digest != plain.digest


def test_a_queue_is_asked_for_their_accelerators() -> None:
    sets = run_workload(make_plan(judged(accelerators=1), PROFILE), QueuePriority())["spec"]["podSets"]
    own = next(one for one in sets if one["name"] == "reward-model")
    (ray,) = own["template"]["spec"]["containers"]
    assert (own["count"], ray["resources"]["requests"]["nvidia.com/gpu"]) == (2, "1")
    assert own["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}


def test_one_claims_its_device_where_its_pool_has_a_class_of_them() -> None:
    claimed = {"name": "claimed", "nodeSelector": {"gpu": "mig"}, "deviceClass": {"name": "mig.nvidia.com"}}
    effective = make_plan(
        judged(accelerators=1, pools=["claimed"]), make_profile(default=True, pools=[*GPU_POOLS, claimed])
    )
    group = groups(effective)["reward-model"]
    ((claim,), ray) = (group["template"]["spec"]["resourceClaims"], container(group))
    assert ray["resources"]["claims"] == [{"name": claim["name"]}]
    assert set(ray["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    (template,) = (one for one in run_objects(effective) if one["kind"] == "ResourceClaimTemplate")
    (asked,) = template["spec"]["spec"]["devices"]["requests"]
    assert (template["metadata"]["name"], asked["exactly"]["count"]) == (
        claim["resourceClaimTemplateName"],
        1,
    )
    assert group["rayStartParams"]["num-gpus"] == "1"


def test_they_wait_for_accelerators_of_others_of_the_namespace() -> None:
    limits = {"perNamespace": {"maxAccelerators": 6}}
    profile = make_profile(default=True, pools=GPU_POOLS, limits=limits)
    story = Story(judged(accelerators=1), profiles=[profile])
    waiting = condition(story.settled(others=Others(Needs(accelerators=2))), "ClusterReady")
    assert waiting is not None
    assert waiting[1] == "NamespaceLimit"
    assert "would have 7 accelerators with this one, allowed at once by profile shared: 6;" in waiting[2]
    assert kinds(story.look(others=Others(Needs(accelerators=1))))[-1] == "RayJob"


@pytest.mark.parametrize(
    ("spec", "changes", "sentence"),
    [
        (judged(pools=["none"]), {}, "spec.task.rewardModel.pools[0]: found 'none', allowed: a pool of "),
        (
            judged(pools=["h100"]),
            {},
            "spec.task.rewardModel.pools: found pool h100 for pods of the reward-model that ask for no accelerator",
        ),
        (
            judged(accelerators=1, pools=["cpu"]),
            {},
            "spec.task.rewardModel.accelerators: found 1, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            judged(accelerators=1) | {"learner": {"pools": ["cpu"]}, "sampler": {"pools": ["cpu"]}},
            {"pools": [{"name": "cpu"}]},
            "spec.task.rewardModel.accelerators: found 1, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            judged(accelerators=1),
            {"limits": {"maxAccelerators": 4}},
            "spec: found 5 accelerators (learner: 1 * 1, sampler: 2 * 1, reward-model: 2 * 1), allowed: at most 4, ",
        ),
        (
            judged(accelerators=1, pools=["spot"]),
            {"pools": [*GPU_POOLS[:2], GPU_POOLS[2] | {"limits": {"maxAccelerators": 1}}]},
            "spec: found 2 accelerators of pool spot (reward-model: 2 * 1), allowed: at most 1, the limit of the pool",
        ),
        (
            {"task": GAME | {"simulators": SIMULATORS, "rewardModel": JUDGE}},
            {"pools": [{"name": "cpu", "limits": {"maxReplicas": 2}}]},
            "spec.task.simulators.replicas: found 3, allowed: at most 2, the limit of pool cpu",
        ),
    ],
)
def test_what_is_wrong_with_them_is_said_of_their_field(
    spec: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(spec, make_profile(default=True, **({"pools": GPU_POOLS} | changes))).message


def test_environments_are_code_of_the_users_and_models_are_not() -> None:
    own = {"isolation": "strict", "secrets": ["hub-access"]}
    pods = {
        role: group["template"]["spec"]
        for role, group in groups(make_plan({"task": BOTH["task"] | own})).items()
    }
    shown = {role: [one["name"] for one in spec["containers"]] for role, spec in pods.items()}
    assert (shown["simulator"], shown["reward-model"]) == (["ray", CODE_CONTAINER], ["ray"])
    shared = groups(make_plan({"task": BOTH["task"] | {"secrets": ["hub-access"]}}))
    for role, given in (("simulator", True), ("reward-model", False)):
        assert ("hub-access" in json.dumps(shared[role])) is given


def pods_of_workers(ready: int) -> tuple[Any, ...]:
    workers = [make_pod("simulator", index=number, ready=number < ready) for number in range(3)]
    return (*all_pods(), *workers, *(make_pod("reward-model", index=number) for number in range(2)))


def test_the_status_counts_them() -> None:
    story = Story(BOTH)
    story.begin()
    decision = story.look(rays=(running_ray(),), pods=pods_of_workers(2))
    roles = {name: (role.ready, role.desired) for name, role in decision.status.roles.items()}
    assert (roles["simulator"], roles["reward-model"]) == ((2, 3), (2, 2))
    assert condition(decision, "ClusterReady") == (
        *("False", "PodsMissing"),
        "not all pods are ready: simulator",
    )
    decision = story.look(rays=(running_ray(),), pods=pods_of_workers(3))
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")


def test_an_attempt_that_began_without_them_lacks_none_of_them() -> None:
    story = Story(BOTH)
    story.begin()
    older = running_ray(groups=frozenset({"learner", "sampler"}))
    decision = story.look(rays=(older,), pods=all_pods())
    assert set(decision.status.roles) == {"head", "learner", "sampler"}
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    one = running_ray(groups=frozenset({"learner", "sampler", "simulator"}))
    assert story.look(rays=(one,), pods=all_pods()).status.roles["simulator"].desired == 3


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("rltrain: error: reward model 0: no answer after 600 s", "OutOfMemory"),
        ("ValueError: no", "AppFailed: ValueError: no"),
    ],
)
def test_a_lost_one_is_why_an_attempt_ended_where_that_is_what_it_says(said: str, reason: str) -> None:
    story = Story(BOTH)
    story.begin()
    killed = (Container("ray", ended="OOMKilled", exit_code=137),)
    dead = make_pod("reward-model", ready=False, containers=killed)
    decision = story.look(rays=(failed_ray(said),), pods=(*all_pods(), dead))
    assert (decision.status.attempts[-1].reason or "").startswith(reason)


def test_an_older_loss_of_one_does_not_hide_why_an_attempt_ended() -> None:
    story = Story(BOTH)
    story.begin()
    killed = (Container("ray", ended="OOMKilled", exit_code=137),)
    dead = [make_pod(role, index=9, ready=False, containers=killed) for role in ("reward-model", "sampler")]
    said = failed_ray("rltrain: error: sampler 1: it was lost 3 times")
    decision = story.look(rays=(said,), pods=(*all_pods(), *dead))
    assert (decision.status.attempts[-1].reason or "").startswith("OutOfMemory: sampler: pod")


@pytest.mark.parametrize(
    ("role", "field"), [("simulator", "task.simulators"), ("reward-model", "task.rewardModel")]
)
def test_more_memory_is_asked_for_in_their_field(role: str, field: str) -> None:
    assert out_of_memory(make_pod(role)).endswith(f"raise {field}.memory")
