"""Workers of the task, which are simulators and models that score: pods of their own, as the other roles have them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    Story,
    all_pods,
    condition,
    container,
    failed_ray,
    groups,
    make_plan,
    make_pod,
    make_profile,
    refused,
    running_ray,
)

from rl_operator.model.names import CODE_CONTAINER
from rl_operator.model.seen import Container, QueuePriority
from rl_operator.plan.limits import needs_of
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
    assert more == 5 * effective.role("simulator").pod.storage


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
