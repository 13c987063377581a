from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_plan, make_profile, refused

from rl_api.profile import RLTrainingProfile
from rl_operator.model.needs import Needs
from rl_operator.plan.limits import needs_of

LIMITED = make_profile(
    default=True,
    pools=[GPU_POOLS[0] | {"limits": {"maxReplicas": 3, "maxAccelerators": 6}}, {"name": "cpu"}],
    limits={"maxSamplers": 4, "maxLearners": 2, "maxAccelerators": 7},
)


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            {"sampler": {"replicas": 5, "pools": ["cpu"]}},
            ["spec.sampler.replicas: found 5, allowed: at most 4, the limit of profile shared"],
        ),
        (
            {"learner": {"replicas": 4, "pools": ["cpu"]}},
            ["spec.learner.replicas: found 4, allowed: at most 2, the limit of profile shared"],
        ),
        (
            {"sampler": {"replicas": 4, "tensorParallelSize": 2}},
            [
                "found 9 accelerators (learner: 1 * 1, sampler: 4 * 2), allowed: at most 7, the limit of profile",
                "spec.sampler.replicas: found 4, allowed: at most 3, the limit of pool h100",
                "found 9 accelerators of pool h100 (learner: 1 * 1, sampler: 4 * 2), allowed: at most 6",
            ],
        ),
    ],
)
def test_limits(spec: dict[str, Any], sentences: list[str]) -> None:
    found = refused(spec, LIMITED)
    assert found.reason == "LimitExceeded"
    for sentence in sentences:
        assert sentence in found.message


@pytest.mark.parametrize(
    ("limits", "pool", "spec", "sentence"),
    [
        ({"maxSamplers": 1}, {}, {"sampler": {"replicas": 2}}, "spec.sampler.replicas: found 2, allowed: at most 1"),
        ({"maxLearners": 1}, {}, {"learner": {"replicas": 2}}, "spec.learner.replicas: found 2, allowed: at most 1"),
        ({"maxAccelerators": 2}, {}, {"sampler": {"replicas": 2}}, "spec: found 3 accelerators"),
        ({}, {"maxReplicas": 1}, {"learner": {"replicas": 2}}, "spec.learner.replicas: found 2, allowed: at most 1"),
        ({}, {"maxAccelerators": 2}, {"sampler": {"replicas": 2}}, "spec: found 3 accelerators of pool h100"),
    ],
)  # fmt: skip
def test_a_limit_itself_is_allowed(
    limits: dict[str, int], pool: dict[str, int], spec: dict[str, Any], sentence: str
) -> None:
    profile = make_profile(
        default=True, limits=limits, pools=[GPU_POOLS[0] | {"limits": pool}, {"name": "cpu"}]
    )
    one = {"sampler": {"replicas": 1, "minReplicas": 1}}
    assert make_plan(one, profile).role("sampler").accelerators == 1
    found = refused({**one, **spec}, profile)
    assert found.reason == "LimitExceeded"
    assert found.message.startswith(sentence)
    assert ";" not in found.message


def test_what_a_pool_has_of_other_roles_does_not_count_there() -> None:
    pools = [
        GPU_POOLS[0] | {"limits": {"maxReplicas": 0, "maxAccelerators": 0}},
        GPU_POOLS[2],
        {"name": "cpu"},
    ]
    profile = make_profile(default=True, pools=pools)
    elsewhere = {
        "sampler": {"pools": ["spot"]},
        "learner": {"pools": ["cpu"]},
        "trainer": {"kind": "rltrain"},
    }
    assert make_plan(elsewhere, profile).role("sampler").replicas == 2
    assert (
        "at most 0, the limit of pool h100"
        in refused({**elsewhere, "learner": {"pools": ["h100"]}}, profile).message
    )


def test_limits_count_the_pods_of_samplers() -> None:
    sampler = {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2, "replicas": 2}
    found = refused({"sampler": sampler}, make_profile(default=True, limits={"maxSamplers": 3}))
    assert found.message.startswith(
        "spec.sampler.replicas: found 2 * podsPerReplica 2 = 4, allowed: at most 3, the limit of profile shared"
    )


def test_no_limit_of_replicas_holds_for_the_head() -> None:
    pools = [GPU_POOLS[0], {"name": "cpu", "limits": {"maxReplicas": 0}}]
    head = make_plan({}, make_profile(default=True, pools=pools)).role("head")
    assert (head.pool.name, head.replicas) == ("cpu", 1)


def test_a_limit_of_samplers_holds_for_runs_that_have_some() -> None:
    profile = make_profile(default=True, limits={"maxSamplers": 1, "maxLearners": 1})
    program = {"kind": "command", "command": ["python"], "workers": ["learner"]}
    assert [role.name for role in make_plan({"trainer": program}, profile).roles] == ["head", "learner"]


@pytest.mark.parametrize(
    ("sampler", "accelerators"),
    [
        ({"tensorParallelSize": 8}, 8),
        ({"engine": "vllm"}, 1),
        ({"engine": "vllm", "tensorParallelSize": 4, "pipelineParallelSize": 2}, 8),
        ({"engine": "vllm", "pools": ["cpu"]}, 0),
        ({"engine": "vllm", "tensorParallelSize": 8, "pipelineParallelSize": 2, "podsPerReplica": 2}, 8),
        ({"resources": {"accelerators": 8}, "tensorParallelSize": 4}, 8),
    ],
)
def test_what_fits(sampler: dict[str, Any], accelerators: int) -> None:
    profile = make_profile(default=True, pools=GPU_POOLS)
    assert make_plan({"sampler": sampler}, profile).role("sampler").accelerators == accelerators


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"sampler": {"engine": "vllm", "tensorParallelSize": 8, "pipelineParallelSize": 2}},
            "spec.sampler.tensorParallelSize: found tensorParallelSize 8 * pipelineParallelSize 2, in one pod 16, allowed: "
            "at most 8, what a node of pool h100 has",
        ),
        (
            {
                "sampler": {
                    **{"engine": "vllm", "tensorParallelSize": 8, "pipelineParallelSize": 4},
                    "podsPerReplica": 2,
                }
            },
            "spec.sampler.tensorParallelSize: found tensorParallelSize 8 * pipelineParallelSize 4 / podsPerReplica 2, in "
            "one pod 16, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"tensorParallelSize": 9, "resources": {"cpu": 2}}},
            "spec.sampler.tensorParallelSize: found 9, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"pools": ["tpu"]}},
            "spec.sampler.pools[0]: found 'tpu', allowed: a pool of profile shared: h100, cpu",
        ),
        ({"learner": {"pools": ["tpu"]}}, "spec.learner.pools[0]: found 'tpu'"),
        (
            {"sampler": {"pools": ["cpu"], "resources": {"accelerators": 2}}},
            "spec.sampler.resources.accelerators: found 2, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            {"learner": {"pools": ["cpu"], "resources": {"accelerators": 2}}},
            "spec.learner.resources.accelerators: found 2, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            {"learner": {"resources": {"accelerators": 16}}},
            "spec.learner.resources.accelerators: found 16, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"tensorParallelSize": 16}},
            "spec.sampler.tensorParallelSize: found 16, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"engine": "vllm", "resources": {"accelerators": 0}}},
            "spec.sampler.resources.accelerators: found 0, allowed: at least 1 with engine vllm",
        ),
        ({"server": {"port": 8265}}, "spec.server.port: found 8265, allowed: a port that Ray does not use"),
        ({"checkpoint": {"storage": None}}, "spec.checkpoint.storage: missing, required on a cluster"),
    ],
)
def test_what_cannot_be_placed(spec: dict[str, Any], sentence: str) -> None:
    found = refused(spec, make_profile(default=True, pools=GPU_POOLS))
    assert found.reason == "InvalidSpec"
    assert sentence in found.message


@pytest.mark.parametrize(
    ("limits", "spec", "sentence"),
    [
        (
            {"maxDuration": "6h"},
            {"stop": {"maxDuration": "7h"}},
            "spec.stop.maxDuration: found 7h, allowed: at most 6h, the limit of profile shared",
        ),
        (
            {"maxPreemptionGracePeriod": "5m"},
            {"scheduling": {"preemptionGracePeriod": "6m"}},
            "spec.scheduling.preemptionGracePeriod: found 6m, allowed: at most 5m, the limit of profile shared",
        ),
        (
            {"maxEphemeralStorage": "30Gi"},
            {"sampler": {"resources": {"ephemeralStorage": "31Gi"}}},
            "spec: found 31Gi of disk for a pod of the sampler, allowed: at most 30Gi, the limit of profile shared",
        ),
        (
            {"maxEphemeralStorage": "20Gi"},
            {"task": {"isolation": "strict"}},
            "spec: found 21Gi of disk for a pod of the head, allowed: at most 20Gi, the limit of profile shared; spec: "
            "found 21Gi of disk for a pod of the sampler, allowed: at most 20Gi, the limit of profile shared",
        ),
        (
            {"perNamespace": {"maxAccelerators": 2}},
            {"sampler": {"replicas": 2, "pools": ["h100"]}, "learner": {"pools": ["h100"]}},
            "spec: found 3 accelerators, allowed: at most 2, the limit of profile shared for a namespace",
        ),
        (
            {"perNamespace": {"maxEphemeralStorage": "79Gi"}},
            {},
            "spec: found 80Gi of disk, allowed: at most 79Gi, the limit of profile shared for a namespace",
        ),
        (
            {"perNamespace": {"maxSamplers": 1, "maxLearners": 1}},
            {"sampler": {"replicas": 2}},
            "spec: found 2 samplers, allowed: at most 1, the limit of profile shared for a namespace",
        ),
    ],
)
def test_limits_of_time_disk_and_namespaces(
    limits: dict[str, Any], spec: dict[str, Any], sentence: str
) -> None:
    profile = make_profile(default=True, limits=limits, pools=[{"name": "cpu"}, GPU_POOLS[0]])
    found = refused(spec, profile)
    assert (found.reason, found.profile_name) == ("LimitExceeded", "shared")
    assert found.message == f"{sentence}. Ask the platform team for more."
    assert found.limits == RLTrainingProfile.model_validate(profile).spec.limits


def test_what_keeps_the_limits_of_time_disk_and_namespaces() -> None:
    limits = {
        "maxDuration": "6h",
        "maxEphemeralStorage": "100Gi",
        "perNamespace": {
            "maxRuns": 1,
            "maxSamplers": 2,
            "maxLearners": 1,
            "maxAccelerators": 3,
            "maxEphemeralStorage": "400Gi",
        },
    }
    pools = [GPU_POOLS[0], {"name": "cpu"}]
    effective = make_plan({}, make_profile(default=True, limits=limits, pools=pools))
    assert needs_of(effective.roles) == Needs(
        runs=1, samplers=2, learners=1, accelerators=3, storage=400 * 2**30
    )
    assert str(effective.spec.stop.max_duration) == "6h", "of a run that says nothing"
    own = make_plan({"stop": {"maxDuration": "5h"}}, make_profile(default=True, limits=limits, pools=pools))
    assert str(own.spec.stop.max_duration) == "5h"


@pytest.mark.parametrize(
    ("spec", "pool", "expected"),
    [
        ({}, {}, "20Gi"),
        ({}, {"acceleratorResource": "nvidia.com/gpu"}, "100Gi"),
        ({}, {"ephemeralStorage": "7Gi"}, "7Gi"),
        ({"sampler": {"resources": {"ephemeralStorage": "9Gi"}}}, {"ephemeralStorage": "7Gi"}, "9Gi"),
    ],
)
def test_every_pod_has_a_limit_of_disk(spec: dict[str, Any], pool: dict[str, Any], expected: str) -> None:
    profile = make_profile(default=True, pools=[{"name": "own"} | pool, {"name": "cpu"}])
    assert make_plan(spec, profile).role("sampler").ephemeral_storage == expected


@pytest.mark.parametrize(
    ("limit", "said", "expected"),
    [
        (None, "1h", 3600),
        (None, None, 120),
        ("5m", "5m", 300),
        ("5m", None, 120),
        ("30s", None, 30),
        (0, None, 0),
    ],
)
def test_the_grace_period_of_a_run_is_within_the_profiles(
    limit: object, said: str | None, expected: float
) -> None:
    profile = make_profile(default=True, limits={"maxPreemptionGracePeriod": limit})
    effective = make_plan({"scheduling": {"preemptionGracePeriod": said}} if said else {}, profile)
    assert effective.spec.scheduling.preemption_grace_period.seconds == expected
    unbounded = make_plan({}, make_profile(default=True))
    assert (effective.profile_digest == unbounded.profile_digest) == (limit is None)
