"""What a vLLM server is asked, and what its answers mean. Bodies of answers are those of vLLM 0.32, shortened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_api import RunSpec
from rl_api.errors import EndpointError, InvalidConfig, RLTrainError
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.endpoint_requests import (
    EndpointOptions,
    Piece,
    check_cuts,
    check_logprobs,
    completion_body,
    probe_body,
    read_completion,
    refused,
    served_model,
    vocabulary_of,
)
from rl_trainer.rollout.engines.vllm_arguments import WORKER_EXTENSION

URL = "http://inference:8000"
MODELS = {"object": "list", "data": [{"id": "/models/one", "object": "model", "max_model_len": 64}]}


def completion(reason: str = "length", tokens: list[int] | None = None) -> dict[str, Any]:
    found = [5, 9] if tokens is None else tokens
    logprobs = {
        "text_offset": [0, 10][: len(found)],
        "token_logprobs": [-0.5, -1.25][: len(found)],
        "tokens": [f"token_id:{token}" for token in found],
        "top_logprobs": [{f"token_id:{token}": -0.5} for token in found],
    }
    choice = {"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": reason, "token_ids": found}
    return {"id": "cmpl-1", "object": "text_completion", "model": "/models/one", "choices": [choice]}


def test_a_request_says_every_parameter_of_the_distribution() -> None:
    params = SamplingParams(7, temperature=0.5, top_p=0.9, top_k=3, stop_token_ids=frozenset({9, 2}))
    request = GenerationRequest("a", np.array([3, 4], np.int32), params, (1 << 63) + 11)
    body = completion_body("/models/one", request, seeded=True, salt="run-1")
    assert body == {
        "model": "/models/one",
        "prompt": [3, 4],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 11,
        "stop_token_ids": [2, 9],
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": "run-1",
    }
    assert completion_body("/models/one", request, seeded=False, salt="run-1")["seed"] is None


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_an_answer_is_tokens_and_their_logprobs(reason: str) -> None:
    assert read_completion(URL, completion(reason)) == Piece([5, 9], [-0.5, -1.25], reason)  # type: ignore[arg-type]


def test_an_answer_that_was_ended_before_its_first_token() -> None:
    answer = completion("abort", [])
    answer["choices"][0]["logprobs"] = None
    assert read_completion(URL, answer) == Piece([], [], "abort")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token_ids": None}, "lacks token ids or log-probs"),
        ({"logprobs": None}, "lacks token ids or log-probs"),
        ({"token_ids": [5]}, "1 tokens and 2 log-probs"),
        ({"finish_reason": "error"}, r"gave a sequence up \(error\)"),
    ],
)
def test_an_answer_that_is_not_whole(change: dict[str, Any], sentence: str) -> None:
    answer = completion()
    answer["choices"][0] |= change
    with pytest.raises(EndpointError, match=sentence):
        read_completion(URL, answer)


def test_what_a_server_says_of_itself() -> None:
    assert served_model(URL, MODELS) == ("/models/one", 64)
    for models in ({"data": []}, {"data": [{"id": "a", "max_model_len": None}]}, None):
        with pytest.raises(EndpointError, match="not that of vLLM"):
            served_model(URL, models)


def probe(*logprobs: float) -> dict[str, Any]:
    found = {f"token_id:{token}": value for token, value in enumerate(logprobs)}
    return {"choices": [{"logprobs": {"token_logprobs": [logprobs[-1]], "top_logprobs": [found]}}]}


def test_logprobs_must_be_of_the_sampling_temperature() -> None:
    assert probe_body("one", 7, 0.25) == {
        "model": "one", "prompt": [7], "max_tokens": 1, "temperature": 0.25, "logprobs": 1
    }  # fmt: skip
    check_logprobs(URL, [probe(-0.5, -3.0), probe(-0.1)])
    with pytest.raises(
        InvalidConfig, match="not of the sampling temperature; start it with --logprobs-mode processed"
    ):
        check_logprobs(URL, [probe(-0.5, -3.0), probe(-0.500001, -0.7)])
    with pytest.raises(EndpointError, match="lacks log-probs"):
        check_logprobs(URL, [probe(-0.5), {"choices": [{"logprobs": None}]}])


def test_logprobs_under_a_cut_need_the_extension() -> None:
    for cuts, extended in ((False, False), (False, True), (True, True)):
        check_cuts(URL, cuts, extended)
    with pytest.raises(
        InvalidConfig, match=f"top-p and top-k leave.*--worker-extension-cls {WORKER_EXTENSION}"
    ):
        check_cuts(URL, True, False)


@pytest.mark.parametrize(
    ("path", "status", "kind", "sentence"),
    [
        ("/pause?mode=abort", 404, InvalidConfig, "without /pause, by which.*VLLM_SERVER_DEV_MODE=1"),
        ("/v1/completions", 404, EndpointError, "/v1/completions is refused .404: no such model"),
        ("/v1/completions", 401, InvalidConfig, "apiKeyVariable: server .* answers 401"),
        ("/v1/completions", 400, EndpointError, "400: no such model"),
    ],
)
def test_what_a_server_refuses(path: str, status: int, kind: type[RLTrainError], sentence: str) -> None:
    error = refused(URL, path, status, "no such\n model")
    assert isinstance(error, kind)
    with pytest.raises(kind, match=sentence):
        raise error


def test_the_vocabulary_of_a_model() -> None:
    assert vocabulary_of({"vocab_size": 61}) == 61
    assert vocabulary_of({"text_config": {"vocab_size": 62}, "vocab_size": 7}) == 62
    with pytest.raises(EndpointError, match="no vocab_size"):
        vocabulary_of({})


def run_spec(sampler: dict[str, Any], staleness: int = 0) -> RunSpec:
    task = {"environment": "reasoning-gym", "name": "chain_sum"}
    given = {
        "model": {"source": "tiny"},
        "task": task,
        "sampler": sampler,
        "buffer": {"maxStaleness": staleness},
    }
    return RunSpec.model_validate(given)


def test_options_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = {"url": f"{URL}/", "folder": "/shared/weights", "timeout": "5m"}
    spec = run_spec({"engine": "endpoint", "endpoint": endpoint, "topP": 0.9}, staleness=2)
    folder = Path("/shared/weights")
    assert EndpointOptions.of(spec) == EndpointOptions(
        URL, folder, folder, None, 300.0, seeded=False, cuts=True
    )
    endpoint |= {"serverFolder": "/mnt/weights", "apiKeyVariable": "INFERENCE_KEY"}
    spec = run_spec({"engine": "endpoint", "endpoint": endpoint})
    with pytest.raises(InvalidConfig, match="apiKeyVariable: found 'INFERENCE_KEY', which is not set"):
        EndpointOptions.of(spec)
    monkeypatch.setenv("INFERENCE_KEY", "secret")
    assert EndpointOptions.of(spec) == EndpointOptions(URL, folder, Path("/mnt/weights"), "secret", 300.0)
    assert EndpointOptions.of(run_spec({})) is None
