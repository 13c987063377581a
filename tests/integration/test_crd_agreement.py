"""The API server and the models agree: what one refuses of many random runs, the other refuses too."""

from __future__ import annotations

import json
import random
import ssl
import urllib.error
import urllib.request
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from kube import KubeApi

from rl_api.recipes import RECIPES
from rl_api.sharing_rules import NOT_BESIDE, ONE_BESIDE_EACH
from rl_api.validation import check_document

SERVER = {"url": "http://a:8000", "folder": "/mnt/a", "persistentVolumeClaim": "b"}
CHOICES: dict[tuple[str, ...], list[Any]] = {
    ("algorithm", "name"): [*RECIPES, "my_module:loss", "ppo1", "a.b:c"],
    ("algorithm", "advantage"): [{}, {"estimator": "batchNormalized"}, {"gamma": 0}, {"estimator": "gae"}],
    ("algorithm", "critic"): [None, {}, {"valueClip": 0}, {"warmupSteps": -1}],
    ("algorithm", "importance"): [
        {},
        {"kind": "mask", "low": 0.5},
        {"low": 2},
        {"high": 0.9},
        {"kind": "none"},
    ],
    ("algorithm", "dynamicSampling"): [{}, {"maxRefills": 0}, {"maxRefills": -1}],
    ("algorithm", "overlong"): [{"buffer": 0.2, "maskTruncated": True}, {"buffer": 2}],
    ("algorithm", "groupSize"): [1, 2, 3, 8, 0, 7],
    ("algorithm", "promptsPerStep"): [1, 5, 32, 33],
    ("algorithm", "miniBatches"): [1, 2, 3],
    ("algorithm", "clip"): [{"low": 0.0}, {"low": 1}, {"high": 1e-9}],
    ("algorithm", "loss"): [
        {},
        {"aggregation": "constant"},
        {"constantLength": 3},
        {"dualClip": 3},
        {"kind": "gspo", "dualClip": 2.5},
        {"kind": "ppoClip", "dualClip": 3.0},
    ],
    ("algorithm", "optimizer"): [{"betas": [0.9]}, {"betas": [0.9, 1.0]}, {}],
    ("learner", "replicas"): [1, 2, 3, 4],
    ("learner", "resources"): [{"accelerators": 0}, {"accelerators": 2}, None],
    ("placement",): [
        {"mode": "disaggregated", "sharedSamplers": 1},
        {"mode": "collocated", "partGroups": 33, "handOver": "drain"},
        {"mode": "collocated", "sharedSamplers": 2, "residency": "keep"},
        {"mode": "hybrid", "sharedSamplers": 0},
        {"mode": "hybrid", "sharedSamplers": 1},
        {"mode": "hybrid", "handOverAt": 0.7, "partGroups": 1},
        {"mode": "auto", "sharedSamplers": 3, "replan": {"steps": 5}},
        {"handOverAt": 0.5, "residency": "swap"},
        {"mode": "disaggregated", "replan": {}},
        {"replan": None},
    ],
    ("placement", "handOverAt"): [0.5, 1, 0, None],
    ("weightSync", "transport"): ["collective", "ipc", "auto"],
    ("buffer", "capacity"): [1, 31, 32, 256],
    ("sampler",): [
        {"engine": "vllm", "maxModelLen": 64, "maxNewTokens": 64},
        {"engine": "vllm", "maxModelLen": 300, "maxNewTokens": 64, "gpuMemoryUtilization": 0.5},
        {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 1, "resources": {"accelerators": 1}},
        {"engine": "vllm", "tensorParallelSize": 2, "resources": {"accelerators": 1}},
        {"engine": "vllm", "pipelineParallelSize": 4, "podsPerReplica": 3, "resources": {"accelerators": 1}},
        {"engine": "vllm", "pipelineParallelSize": 4, "podsPerReplica": 2, "resources": {"accelerators": 1}},
        {"engine": "vllm", "tensorParallelSize": 2, "resources": {"accelerators": 0}, "quantization": "fp8"},
        {"engine": "torch", "gpuMemoryUtilization": None, "maxModelLen": None, "quantization": "none"},
        {"engine": "torch", "gpuMemoryUtilization": 0.5},
        {"engine": "torch", "endpoint": {"url": "http://a:8000", "folder": "/a"}},
        {"engine": "endpoint", "endpoint": {"url": "http://a:8000", "folder": "/a"}},
        {"engine": "endpoint", "endpoint": SERVER},
        {"engine": "endpoint", "endpoint": SERVER | {"folder": "/tmp/.", "apiKeyVariable": "RAY_AUTH_TOKEN"}},
        {"engine": "endpoint", "endpoint": SERVER | {"serverFolder": "/models/live/../../b"}},
        {"engine": "endpoint", "endpoint": SERVER | {"url": "http://a/v1"}, "tensorParallelSize": 2},
        {
            "engine": "endpoint",
            "endpoint": SERVER | {"folder": "/mnt/../a"},
            "resources": {"accelerators": 1},
        },
        {"engine": "endpoint"},
    ],
    ("sampler", "replicas"): [1, 2, 5],
    ("sampler", "minReplicas"): [1, 2, 3],
    ("sampler", "maxNewTokens"): [1, 63, 64, 256, 600],
    ("sampler", "stop"): [[], ["a"], [""]],
    ("sampler", "resources"): [None, {}, {"cpu": 0}, {"cpu": 0.5, "memory": "1Gi"}, {"memory": "1 Gi"}],
    ("model", "tiny"): [None, {}, {"heads": 3}, {"maxPositions": 300}, {"hiddenSize": 96, "kvHeads": 4}],
    ("task", "environment"): ["prompts", "reasoning-gym", "tool-use"],
    ("task", "file"): ["a.jsonl", None, "../a", "s3://b/c", "s3://b/../c", "file:///a", "zip://a::s3://b/c"],
    ("task", "dataset"): [{"name": "a/b"}, {"name": "../a"}, {"name": "s3://a"}, {}, None],
    ("task", "onLongPrompt"): ["drop", "fail", "stop"],
    ("task", "name"): ["chain_sum", None],
    ("task", "promptField"): ["", "q"],
    ("task", "tools"): [[], [{}], [5], [{"type": "function"}]],
    ("task", "chatTemplateKwargs"): [{"enable_thinking": False}, {}, 5],
    ("task", "observationRole"): ["user", "tool", "system"],
    ("task", "evaluation"): [None, {}, {"maxNewTokens": 64}, {"maxNewTokens": 600}],
    ("task", "rewards"): [
        [{"rule": "regex"}],
        [{"rule": "task"}],
        [{"pattern": "x"}],
        [{"rule": "function", "function": "a:b"}],
        [{"rule": "function", "function": "a"}],
        [{"rule": "regex", "pattern": "it's %s {x}"}],
        [{"timeout": 0}],
        [{"timeout": "1h30m"}],
        [{"timeout": "1.5"}],
    ],
    ("checkpoint", "asynchronous"): ["auto", "always", "never", True, "sometimes"],
    ("checkpoint", "storage"): [
        {"s3": "x"},
        {"s3": "s3://x"},
        {},
        {"path": "a", "s3": "s3://x"},
        {"path": "a"},
        {"path": "/mnt/a"},
        {"path": "/mnt"},
        {"path": "../a"},
    ],
    ("model", "source"): [
        "a/b",
        "a/b/c",
        "/models/a",
        "/models/../a",
        "./a",
        "~/a",
        "s3://b/c",
        "hf://b",
        "s3://b:c",
        "s3://b/../c",
    ],
    ("server", "port"): [0, 8080, 8090, 10001, 10002, 19999, 20000],
    ("checkpoint",): [None],
    ("stop", "maxDuration"): ["5m", 5, "0s", None, "-1s", "1e3s"],
    ("scheduling", "preemptionGracePeriod"): ["0s", 0, "2m", ""],
    ("image",): [None, "x:1", ""],
    ("profile",): [None, "a", "A"],
    ("seed",): [0, 2**32 - 1, 2**32, -1],
    ("warmStart",): [None, {}, {"untilScore": 2}],
    ("retry", "limit"): [0, -1],
    ("retry", "livenessTimeout"): ["30s", "5s", 5, "4999ms", 4, "0s", "1 s"],
    ("trainer",): [
        {"kind": "command", "command": ["a", "b"]},
        {"kind": "command", "command": []},
        {
            "kind": "command",
            "command": ["a"],
            "config": {"x": [1]},
            "workers": ["sampler"],
            "pools": ["a", "b"],
        },
        {"kind": "command", "command": ["a"], "env": [{"name": "A", "value": ""}], "resources": {"cpu": 2}},
        {"kind": "command", "command": ["a"], "env": [{"name": "RAY_ADDRESS", "value": "x"}]},
        {"config": {}},
        {"config": None, "resources": None},
        {"kind": "verl"},
        {"kind": "verl", "env": [{"name": "A", "value": "b"}], "workers": []},
    ],
    ("model",): [None],
    ("task",): [None],
}


SERVICE_CHOICES: dict[tuple[str, ...], list[Any]] = {
    ("engine",): ["torch", "vllm", "vllm"],
    ("tensorParallelSize",): [1, 2, 65],
    ("from",): [
        {"run": "a"},
        {"checkpoint": "tiny"},
        {"checkpoint": "./a"},
        {},
        {"run": "a", "checkpoint": "b/c"},
    ],
    ("auth",): [{"secret": "keys"}, {"secret": "keys", "anonymous": False}, {}, {"anonymous": False}],
    ("promotion", "strategy"): ["inPlace", "newCluster", "incremental"],
    ("promotion", "answers"): ["stamp", "finish"],
    ("promotion", "incremental"): [{"gatewayClass": "a"}, {}, {"gatewayClass": "a", "interval": "0s"}, None],
    ("promotion", "mode"): ["manual", "automatic"],
    ("promotion", "step"): [7, 0, -1, None],
    ("promotion", "gate"): [{}, {"probe": {"configMap": "a"}}],
    ("promotion", "gate", "probe"): [
        {"configMap": "a", "key": key} for key in ("a", ".a", ".", "..", "..a", "a/b", "a..b", "a b")
    ],
    ("replicas",): [{"min": 2}, {"max": 2}, {"min": 3, "max": 2}, {"min": 0}],
    ("limits",): [{"newTokens": 5000}, {"context": 8192, "newTokens": 5000}, {"requestsPerSecondPerKey": 1}],
    ("pools",): [[], ["a"], ["a", "b"], ["a", "b", "a"]],
    ("head", "pools"): [["a"], ["a", "a"]],
    ("clients",): [None, {}, {"matchExpressions": [{"key": "a", "operator": "In"}]}],
}


def random_run(source: random.Random) -> dict[str, Any]:
    """A run with one to four fields of CHOICES."""
    spec: dict[str, Any] = {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "checkpoint": {"storage": {"persistentVolumeClaim": "a"}},
    }
    return changed("RLTrainingRun", spec, CHOICES, source, 4)


def random_service(source: random.Random) -> dict[str, Any]:
    """A service with one to three fields of SERVICE_CHOICES."""
    spec: dict[str, Any] = {"from": {"run": "a"}, "auth": {"anonymous": True}}
    return changed("RLPolicyService", spec, SERVICE_CHOICES, source, 3)


def changed(
    kind: str,
    spec: dict[str, Any],
    choices: dict[tuple[str, ...], list[Any]],
    source: random.Random,
    most: int,
) -> dict[str, Any]:
    """An object with at most so many fields chosen anew."""
    for path in source.sample(list(choices), source.randint(1, most)):
        inside = spec
        for part in path[:-1]:
            if not isinstance(inside.get(part), dict):
                inside[part] = {}
            inside = inside[part]
        inside[path[-1]] = deepcopy(source.choice(choices[path]))
    return {"apiVersion": "rltrain.dev/v1alpha1", "kind": kind, "metadata": {"name": "random"}, "spec": spec}


def create(kube: KubeApi, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and answer of a create that is not kept."""
    kinds = f"{document['kind'].lower()}s"
    path = f"/apis/rltrain.dev/v1alpha1/namespaces/default/{kinds}?fieldValidation=Strict&dryRun=All"
    request = urllib.request.Request(
        kube.server + path,
        data=json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {kube.token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(kube.certificate))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("seed", range(4))
def test_both_refuse_the_same(kube: KubeApi, seed: int) -> None:
    source = random.Random(seed)
    taken = refused = 0
    for _ in range(75):
        document = random_run(source)
        written, problems = check_document(deepcopy(document), "cluster")
        # A field that a profile may fill in is missing for the operator only, and what verl lacks only it knows.
        words = ("required on a cluster", "allowed with trainer.kind verl")
        learner = document["spec"].get("learner") or {}
        if not learner.get("replicas") or not learner.get("resources"):
            words += (ONE_BESIDE_EACH,)  # how many learner processes there are, a profile may say
        placement = document["spec"].get("placement") or {}
        mode = placement.get("mode")
        if mode is None or (mode == "auto" and placement.get("sharedSamplers") is None):
            words += (NOT_BESIDE,)  # and who shares
        for_operator = [problem for problem in problems if any(word in problem.sentence for word in words)]
        code, answer = create(kube, document)
        assert code in (201, 422), answer
        assert (code == 422) == (len(problems) > len(for_operator)), (document["spec"], problems, answer)
        if code == 422:
            refused += 1
        elif written is not None:
            taken += 1
            # What the API server filled in says the same as what the models fill in.
            assert as_stored(answer).spec == written.spec
    assert min(taken, refused) > 10


@pytest.mark.parametrize(
    "placement",
    [{"mode": "hybrid"}, {"mode": "collocated"}, {"sharedSamplers": 1}, {"mode": "disaggregated"}],
)
def test_both_refuse_the_same_samplers_on_cpus_beside_learners_on_gpus(
    kube: KubeApi, placement: dict[str, Any]
) -> None:
    for transport, sampler, learner in product(("ipc", "objectStore"), (None, 0, 1), (None, 0, 2)):
        spec = {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "checkpoint": {"storage": {"persistentVolumeClaim": "a"}},
            "sampler": {"replicas": 2, "resources": {"accelerators": sampler}},
            "learner": {"replicas": 2, "resources": {"accelerators": learner}},
            "placement": placement,
            "weightSync": {"transport": transport},
        }
        document = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "metadata": {"name": "random"},
            "spec": spec,
        }
        problems = check_document(deepcopy(document), "cluster")[1]
        code, answer = create(kube, document)
        assert (code == 422) == bool(problems), (spec, problems, answer)
        assert all(problem.sentence in answer["message"] for problem in problems), (problems, answer)


@pytest.mark.parametrize(
    "sampler",
    [
        {"engine": "vllm", "podsPerReplica": 2},
        {
            "engine": "vllm",
            "tensorParallelSize": 4,
            "pipelineParallelSize": 2,
            "resources": {"accelerators": 4},
        },
    ],
)
def test_what_a_profile_may_complete_is_for_the_operator(kube: KubeApi, sampler: dict[str, Any]) -> None:
    spec = {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "checkpoint": {"storage": {"persistentVolumeClaim": "a"}},
        "sampler": sampler,
    }
    document = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "random"},
        "spec": spec,
    }
    code, answer = create(kube, document)
    assert code == 201, answer
    assert check_document(deepcopy(document), "cluster")[1], "wrong without a profile"


@pytest.mark.parametrize("seed", range(4))
def test_both_refuse_the_same_services(kube: KubeApi, seed: int) -> None:
    source = random.Random(seed)
    taken = refused = 0
    for _ in range(75):
        document = random_service(source)
        written, problems = check_document(deepcopy(document), "cluster")
        code, answer = create(kube, document)
        assert code in (201, 422), answer
        assert (code == 422) == bool(problems), (document["spec"], problems, answer)
        if code == 422:
            refused += 1
        else:
            taken += 1
            assert written is not None
            assert as_stored(answer).spec == written.spec
    assert min(taken, refused) > 10


def as_stored(answer: dict[str, Any]) -> Any:
    """What the API server answered, as the models read it."""
    stored = {key: answer[key] for key in ("apiVersion", "kind", "spec")}
    read, _ = check_document(stored | {"metadata": {"name": "random"}}, "cluster")
    assert read is not None
    return read
