"""What builders and replicas are told: every mistake is one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_serve.arguments import PolicyRef, parse_arguments, parse_user_config

ARGS: dict[str, Any] = {
    "service": "svc",
    "model": "small",
    "engine": "torch",
    "resources": {"cpus": 1, "gpus": 0},
    "source": {"run": "arithmetic", "folder": "/var/lib/rltrain/run"},
    "limits": {
        "context": 4096,
        "newTokens": 1024,
        "queue": 64,
        "timeoutSeconds": 300,
        "requestsPerSecond": None,
        "requestsPerSecondPerKey": 0.5,
    },
    "answers": "finish",
    "keysFolder": None,
    "controlTokenFile": "/etc/rltrain-token/token",
    "probe": {"file": "/etc/rltrain-probe/probe.jsonl", "scorer": "number"},
}
DIGEST = "0123456789abcdef" * 4


def test_all_arguments() -> None:
    found = parse_arguments(ARGS)
    assert (found.source.run, found.source.folder) == ("arithmetic", "/var/lib/rltrain/run")
    assert (found.limits.new_tokens, found.limits.requests_per_second_per_key) == (1024, 0.5)
    assert found.probe is not None
    least = {name: ARGS[name] for name in ("service", "model", "controlTokenFile")}
    fixed = parse_arguments({**least, "source": {"checkpoint": "s3://bucket/model"}})
    assert (fixed.limits.context, fixed.answers, fixed.probe) == (4096, "finish", None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"answers": "wait"}, "args.answers: found 'wait', allowed: finish or stamp"),
        ({"engine": "sglang"}, "args.engine: found 'sglang', allowed: torch or vllm"),
        (
            {"pipelineParallelSize": 2},
            "args.tensorParallelSize, args.pipelineParallelSize: found 1 and 2, allowed: 1 and 1 with engine torch",
        ),
        (
            {"engine": "vllm", "tensorParallelSize": 2, "resources": {"cpus": 1, "gpus": 1}},
            "args.resources.gpus: found 1, allowed: 0, or tensorParallelSize * pipelineParallelSize, which is 2",
        ),
        ({"prefill": {}}, "args.prefill: found an object, allowed: null with engine torch"),
        (
            {"engine": "vllm", "pipelineParallelSize": 2, "prefill": {}},
            "args.pipelineParallelSize: found 2, allowed: 1 with prefill",
        ),
        (
            {"engine": "vllm", "prefill": {"resources": {"gpus": 2}}},
            "args.prefill.resources.gpus: found 2, allowed: 0, or tensorParallelSize * pipelineParallelSize, which is 1",
        ),
        ({"source": {}}, "args.source: found nothing, allowed: run with folder, or checkpoint"),
        ({"source": {"run": "r"}}, "args.source: found run, allowed: run with folder, or checkpoint"),
        (
            {"source": {"run": "r", "folder": "/f", "checkpoint": "c"}},
            "args.source: found run and folder and checkpoint, allowed: run with folder, or checkpoint",
        ),
        (
            {"source": {"run": "r", "folder": "http://host/f"}},
            "args.source.folder: found http://host/f, allowed: a folder, or s3://bucket/folder without ..",
        ),
        (
            {"limits": {"context": 100, "newTokens": 100}},
            "args.limits.newTokens: found 100, allowed: less than context, which is 100",
        ),
        ({"tokens": 1}, "args.tokens: unknown field, "),
    ],
)
def test_a_mistake_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidConfig) as found:
        parse_arguments({**ARGS, **change})
    assert str(found.value).startswith(sentence)
    assert "\n" not in str(found.value)


def test_the_policy_of_a_user_config() -> None:
    assert parse_user_config({"policy": None}) is None
    policy = {"source": "/run/checkpoints/step-00000020", "digest": DIGEST, "version": "svc-step-20"}
    assert parse_user_config({"policy": policy}) == PolicyRef.model_validate(policy)
    for wrong in ({}, {"policy": 1}, {"policy": {**policy, "digest": "abc"}}, None):
        with pytest.raises(InvalidConfig, match=r"^user_config"):
            parse_user_config(wrong)
