"""Samplers of several pods: what API server and admission refuse is what the operator refuses, with a profile's defaults."""

from __future__ import annotations

from typing import Any

import pytest
from chart_rendering import one, render
from few_cel import evaluate
from operator_worlds import GPU_POOLS, make_profile, make_run

from rl_api.crd_sampler import SAMPLER_CEL_RULES
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, Plan, plan
from rl_operator.plan.refused import Refused

OF_PODS = [
    rule
    for rule in SAMPLER_CEL_RULES
    if "podsPerReplica" in rule["rule"] and rule["fieldPath"].endswith(("podsPerReplica", "accelerators"))
]


def planned(sampler: dict[str, Any], **profile: Any) -> Plan:
    run = make_run()
    run["spec"]["sampler"] = sampler
    return plan(run, [make_profile(default=True, pools=GPU_POOLS[:2], **profile)], Settings())


def broken(sampler: dict[str, Any]) -> set[str]:
    """Fields that the API server refuses by a rule about stages and pods."""
    spec = {"sampler": sampler, "trainer": {"kind": "rltrain"}}
    return {rule["fieldPath"] for rule in OF_PODS if not evaluate(rule["rule"], self=spec)}


@pytest.mark.parametrize(
    ("defaults", "sampler"),
    [
        ({"engine": "vllm", "pipelineParallelSize": 2}, {"engine": "vllm", "podsPerReplica": 2}),
        (
            {"engine": "vllm", "podsPerReplica": 2},
            {
                "engine": "vllm",
                "tensorParallelSize": 4,
                "pipelineParallelSize": 2,
                "resources": {"accelerators": 4},
            },
        ),
    ],
)
def test_the_api_server_takes_what_is_whole_with_the_profile(
    defaults: dict[str, Any], sampler: dict[str, Any]
) -> None:
    found = planned(sampler, defaults={"sampler": defaults})
    assert isinstance(found, Effective), found
    assert broken(sampler) == set()


@pytest.mark.parametrize(
    ("sampler", "field"),
    [
        ({"pipelineParallelSize": 4, "podsPerReplica": 3}, "podsPerReplica"),
        ({"pipelineParallelSize": 4, "podsPerReplica": 1, "resources": {"accelerators": 3}}, "resources.accelerators"),
        ({"pipelineParallelSize": 4, "podsPerReplica": 2, "resources": {"accelerators": 1}}, "resources.accelerators"),
        ({"tensorParallelSize": 2, "resources": {"accelerators": 1}}, "resources.accelerators"),
    ],
)  # fmt: skip
def test_the_api_server_refuses_what_the_run_says_itself(sampler: dict[str, Any], field: str) -> None:
    assert broken({"engine": "vllm", **sampler}) == {f".sampler.{field}"}


@pytest.mark.parametrize(
    ("defaults", "sampler", "count"),
    [
        ({}, {}, 1),
        ({}, {"replicas": 3}, 3),
        ({}, {"replicas": 3, "podsPerReplica": 2, "pipelineParallelSize": 2}, 6),
        ({"podsPerReplica": 2, "pipelineParallelSize": 2}, {"replicas": 2}, 4),
        ({"podsPerReplica": 2, "pipelineParallelSize": 2}, {"replicas": 2, "podsPerReplica": 1}, 2),
    ],
)  # fmt: skip
def test_admission_counts_the_pods_of_samplers_as_the_operator_does(
    defaults: dict[str, Any], sampler: dict[str, Any], count: int
) -> None:
    own, defaults = {"engine": "vllm", **sampler}, {"sampler": {"engine": "vllm", **defaults}}
    variables: dict[str, Any] = {"defaults": defaults}
    policy = one(render(), "ValidatingAdmissionPolicy", "rltrain-profiles")
    for variable in policy["spec"]["variables"]:
        if variable["name"] in ("replicas", "pods", "samplers"):
            variables[variable["name"]] = evaluate(
                variable["expression"], object={"spec": {"sampler": own}}, variables=variables
            )
    assert variables["samplers"] == count
    assert isinstance(planned(own, defaults=defaults, limits={"maxSamplers": count}), Effective)
    if count > 1:
        found = planned(own, defaults=defaults, limits={"maxSamplers": count - 1})
        assert isinstance(found, Refused)
        assert f"{count}, allowed: at most {count - 1}, the limit" in found.message
