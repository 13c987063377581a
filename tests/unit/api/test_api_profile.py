from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from rl_api import RLTrainingProfile, check_document
from rl_api.documents import load_value
from rl_api.paths import render_path
from rl_api.profile import merge

FULL = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingProfile
metadata: {name: shared-h100, labels: {team: platform}}
spec:
  default: true
  images: {cpu: "registry.example/trainer:cpu", gpu: "registry.example/trainer:gpu"}
  queue: research
  defaults:
    checkpoint: {storage: {persistentVolumeClaim: checkpoints}}
    scheduling: {priorityClass: research, preemptionGracePeriod: 90s}
    sampler: {engine: torch}
  limits: {maxSamplers: 64, maxLearners: 8, maxAccelerators: 72}
  pools:
    - name: cpu
    - name: h100
      nodeSelector: {example.com/gpu: h100}
      tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
        - {operator: Exists, tolerationSeconds: 60}
        - {key: team, value: research}
      acceleratorResource: nvidia.com/gpu
      acceleratorsPerNode: 8
      runtimeClass: nvidia
      spot: true
      limits: {maxReplicas: 64, maxAccelerators: 64}
"""


def check(change: dict[str, Any]) -> list[str]:
    document = load_value(FULL)
    document["spec"] |= change
    resource, problems = check_document(document)
    assert (resource is None) == bool(problems)
    return [f"{render_path(problem.path)}: {problem.sentence}" for problem in problems]


def test_a_full_profile_is_valid() -> None:
    resource, problems = check_document(load_value(FULL))
    assert problems == []
    assert isinstance(resource, RLTrainingProfile)
    assert resource.name == "shared-h100"
    assert resource.spec.pools[1].accelerators_per_node == 8
    assert resource.to_document()["spec"]["pools"][1]["tolerations"][0]["effect"] == "NoSchedule"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"pools": [{"name": "a"}, {"name": "b"}, {"name": "a"}]},
            ["spec.pools[2].name: found 'a', which spec.pools[0] has already"],
        ),
        (
            {"pools": [{"name": "a", "acceleratorsPerNode": 8}]},
            [
                "spec.pools[0].acceleratorResource: missing, required with acceleratorsPerNode: "
                "a resource such as nvidia.com/gpu, or a deviceClass"
            ],
        ),
        (
            {
                "pools": [
                    {
                        "name": "a",
                        "tolerations": [{"value": "x"}, {"key": "k", "operator": "Exists", "value": "v"}],
                    }
                ]
            },
            [
                "spec.pools[0].tolerations[0].key: missing, required with operator Equal: the key of a taint",
                "spec.pools[0].tolerations[1].value: found 'v', allowed: null with operator Exists",
            ],
        ),
        (
            {"pools": []},
            ["spec.pools: found an empty list, allowed: a list of 1 to 64 items, each an object"],
        ),
        (
            {"pools": [{"name": "a", "gpus": 1}]},
            [
                "spec.pools[0].gpus: unknown field, allowed: name, nodeSelector, tolerations, "
                "acceleratorResource, deviceClass, acceleratorsPerNode, spot, runtimeClass, ephemeralStorage, "
                "withoutAccelerators, topology, limits"
            ],
        ),
        (
            {"pools": [{"name": "a", "runtimeClas": "x"}]},
            ["spec.pools[0].runtimeClas: unknown field, did you mean runtimeClass?"],
        ),
        (
            {"pools": [{"name": "a", "nodeSelector": {"a b": "c"}, "acceleratorsPerNode": 8}]},
            [
                "spec.pools[0].nodeSelector.a b: found this key, allowed: a Kubernetes name such as nvidia.com/gpu",
                "spec.pools[0].acceleratorResource: missing, required with acceleratorsPerNode: "
                "a resource such as nvidia.com/gpu, or a deviceClass",
            ],
        ),
        (
            {"queue": "Big Queue"},
            [
                "spec.queue: found 'Big Queue', allowed: 1 to 63 characters a-z, 0-9 and '-', "
                "the first and the last not '-' or null"
            ],
        ),
        (
            {"limits": {"maxTaskWorkers": -1}},
            ["spec.limits.maxTaskWorkers: found -1, allowed: a whole number >= 0 and <= 1000000000 or null"],
        ),
        (
            {"limits": {"maxSamplers": 0}},
            ["spec.limits.maxSamplers: found 0, allowed: a whole number >= 1 and <= 1000000000 or null"],
        ),
        ({"defaults": [1]}, ["spec.defaults: found a list, allowed: an object"]),
        (
            {"defaults": {"sampler": {"replica": 2}}},
            ["spec.defaults.sampler.replica: unknown field, did you mean replicas?"],
        ),
        (
            {"defaults": {"replicas": 2}},
            [
                "spec.defaults.replicas: unknown field, did you mean task.simulators.replicas, "
                "task.rewardModel.replicas or sampler.replicas?"
            ],
        ),
        (
            {"defaults": {"sampler": {"replicas": 2}}},
            ["spec.defaults.sampler.replicas: cannot have a default: how many is the run's to say"],
        ),
        (
            {"defaults": {"sampler": {"engine": "endpoint"}}},
            [
                "spec.defaults.sampler.engine: found 'endpoint', allowed in a profile: torch or vllm, as a server has the "
                "weights of one run"
            ],
        ),
        (
            {
                "defaults": {
                    "sampler": {"endpoint": {"url": "http://inference:8000", "folder": "/mnt/weights"}}
                }
            },
            [
                "spec.defaults.sampler.endpoint: found an object, allowed in a profile: null, as a server has the weights "
                "of one run"
            ],
        ),
        (
            {"allow": {"endpoints": [{"url": "http://inference:8000/v1"}, {"url": "http://[fd00::8]:8000"}]}},
            [
                "spec.allow.endpoints[0].url: found 'http://inference:8000/v1', allowed: the address without /v1, as "
                "weights are changed beside it"
            ],
        ),
        (
            {"allow": {"endpoints": [{"url": "inference"}, {"url": "http://inference:8000/"}]}},
            [
                f"spec.allow.endpoints[{index}].url: found '{url}', allowed: an address such as "
                "http://inference.serving:8000 or https://*.example.org/team-a/*, without / at its end, with * for any text"
                for index, url in enumerate(("inference", "http://inference:8000/"))
            ],
        ),
        (
            {"defaults": {"checkpoint": 5}},
            [
                "spec.defaults.checkpoint: found 5, allowed: an object with everySteps, keep, storage and "
                "asynchronous or null"
            ],
        ),
        (
            {"defaults": {"profile": "other"}},
            [
                "spec.defaults.profile: cannot have a default, allowed: image, sampler, learner, placement, weightSync, "
                "checkpoint, scheduling, retry, cleanup and server"
            ],
        ),
    ],
)
def test_every_mistake_in_a_profile_has_its_sentence(change: dict[str, Any], expected: list[str]) -> None:
    assert check(change) == expected


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": {"d": 2}}}, {"a": {"c": {"e": 3}}}, {"a": {"b": 1, "c": {"d": 2, "e": 3}}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"storage": {"s3": "s3://a"}}, {"storage": {"path": "/b"}}, {"storage": {"path": "/b"}}),
    ],
)
def test_what_a_run_says_is_above_what_its_profile_says(
    base: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]
) -> None:
    before = deepcopy(base)
    assert merge(base, over) == merged
    assert base == before
