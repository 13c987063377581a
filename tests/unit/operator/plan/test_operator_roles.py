"""Sizes of the pods: what is asked of Kubernetes, and what Ray may hand out on them."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_plan, make_profile

from rl_operator.plan.limits import needs_of

PROFILE = make_profile(default=True, pools=GPU_POOLS)
PROGRAM = {"kind": "command", "command": ["python", "train.py"]}


GAME = {"environment": "tool-use", "name": "calculator"}
SCORED = {"environment": "reasoning-gym", "name": "chain_sum", "rewards": [{"rule": "model"}]}
DIVIDED = {"engine": "vllm", "tensorParallelSize": 2, "pipelineParallelSize": 2}


def sizes(spec: dict[str, Any], name: str) -> tuple[str, int, str, int]:
    role = make_plan(spec, PROFILE).role(name)
    return role.cpu, role.ray_cpus, role.memory, role.accelerators


@pytest.mark.parametrize(
    ("spec", "role", "size"),
    [
        ({}, "head", ("200m", 1, "2Gi", 0)),
        ({"trainer": PROGRAM | {"pools": ["cpu"]}}, "head", ("200m", 1, "1536Mi", 0)),
        (
            {"trainer": PROGRAM | {"pools": ["h100"], "resources": {"accelerators": 1}}},
            "head",
            ("200m", 1, "16Gi", 1),
        ),
        ({"trainer": PROGRAM | {"resources": {"cpu": 0.5, "memory": "3Gi"}}}, "head", ("500m", 1, "3Gi", 0)),
        ({"trainer": PROGRAM | {"resources": {"cpu": 2.5}}}, "head", ("2500m", 3, "2Gi", 0)),
        ({"task": GAME | {"simulators": {}}}, "head", ("200m", 1, "2Gi", 0)),
        ({"task": GAME | {"simulators": {}}}, "simulator", ("1000m", 1, "1624Mi", 0)),
        (
            {"task": GAME | {"simulators": {"replicas": 3, "cpu": 0.5, "memory": "512Mi"}}},
            "simulator",
            ("500m", 1, "1112Mi", 0),
        ),
        (
            {"task": SCORED | {"rewardModel": {"source": "org/judge", "cpu": 2.5, "memory": "3Gi"}}},
            "reward-model",
            ("2500m", 3, "3672Mi", 0),
        ),
        ({"learner": {"threads": 3}}, "learner", ("3", 3, "16Gi", 1)),
        ({"learner": {"threads": 3, "pools": ["cpu"]}}, "learner", ("200m", 3, "1536Mi", 0)),
        (
            {"learner": {"threads": 2, "resources": {"accelerators": 4, "memory": "90Gi"}}},
            "learner",
            ("8", 8, "90Gi", 4),
        ),
        ({"sampler": {"threads": 3}}, "sampler", ("3", 3, "16Gi", 1)),
        ({"sampler": {"threads": 3, "pools": ["cpu"]}}, "sampler", ("200m", 3, "1536Mi", 0)),
        ({"sampler": {"threads": 3, "resources": {"cpu": 0.25}}}, "sampler", ("250m", 3, "16Gi", 1)),
        ({"sampler": {"resources": {"cpu": 3.2, "memory": "9Gi"}}}, "sampler", ("3200m", 4, "9Gi", 1)),
        ({"sampler": {"tensorParallelSize": 2}}, "sampler", ("1", 1, "16Gi", 2)),
        ({"sampler": DIVIDED}, "sampler", ("1", 1, "16Gi", 4)),
        ({"sampler": DIVIDED | {"resources": {"accelerators": 8}}}, "sampler", ("1", 1, "16Gi", 8)),
        ({"sampler": DIVIDED | {"pools": ["cpu"]}}, "sampler", ("200m", 4, "1536Mi", 0)),
        ({"sampler": DIVIDED | {"pools": ["cpu"], "threads": 6}}, "sampler", ("200m", 6, "1536Mi", 0)),
        ({"sampler": DIVIDED | {"podsPerReplica": 2}}, "sampler", ("1", 1, "16Gi", 2)),
        ({"sampler": DIVIDED | {"podsPerReplica": 2, "pools": ["cpu"]}}, "sampler", ("200m", 2, "1536Mi", 0)),
    ],
)
def test_size_of_a_pod(spec: dict[str, Any], role: str, size: tuple[str, int, str, int]) -> None:
    assert sizes(spec, role) == size


def test_samplers_of_several_pods_all_begin_and_stay_as_many() -> None:
    spec = {"sampler": DIVIDED | {"podsPerReplica": 2, "replicas": 3, "minReplicas": 1}}
    effective = make_plan(spec)
    role = effective.role("sampler")
    assert (role.replicas, role.at_start, role.hosts, effective.elastic) == (6, 6, 2, False)
    assert needs_of([role]).samplers == 6


@pytest.mark.parametrize(
    ("spec", "at_start"),
    [
        ({"sampler": {"replicas": 5}}, 1),
        ({"sampler": {"replicas": 5, "minReplicas": 3}}, 3),
        ({"sampler": {"replicas": 5}, "scheduling": {"queue": "q", "integration": "label"}}, 5),
    ],
)
def test_pods_that_an_attempt_begins_with(spec: dict[str, Any], at_start: int) -> None:
    effective = make_plan(spec | {"learner": {"replicas": 2}})
    assert effective.role("sampler").at_start == at_start
    assert effective.elastic is (at_start < 5)
    assert (effective.role("learner").at_start, effective.role("head").at_start) == (2, 1)


def test_the_queue_of_a_profile_fixes_the_number_of_pods_too() -> None:
    assert not make_plan(
        {"scheduling": {"integration": "label"}}, make_profile(default=True, queue="batch")
    ).elastic
