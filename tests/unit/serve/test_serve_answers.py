"""Answers and events as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl_serve.answers import Delta, Form, Usage, dumps, event, failure, model, models
from rl_serve.detokenize import TextToken
from rl_serve.errors import ApiError

TOKENS = (TextToken(1, -0.5, 0, 1), TextToken(2, -1.5, 1, 2))


def form(**changes: Any) -> Form:
    options: dict[str, Any] = {
        "id": "x",
        "created": 7,
        "model": "small",
        "version": "step-1",
        "chat": True,
        "logprobs": True,
        "top_logprobs": False,
        "decode": {1: "a", 2: "\N{REPLACEMENT CHARACTER}"}.__getitem__,
    }
    return Form(**(options | changes))


def test_a_whole_chat() -> None:
    found = form().whole([Delta(0, "ab", TOKENS, "stop")], Usage(3, 2))
    assert found["object"] == "chat.completion"
    assert found["policy_version"] == found["system_fingerprint"] == "step-1"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    assert choice["finish_reason"] == "stop"
    first, second = choice["logprobs"]["content"]
    assert first == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    assert second["bytes"] is None, "a part of a character has no text of its own"


def test_a_whole_completion() -> None:
    found = form(chat=False).whole([Delta(0, "ab", TOKENS, "length")], Usage(3, 2))
    assert found["object"] == "text_completion"
    assert found["choices"][0]["text"] == "ab"
    assert found["choices"][0]["logprobs"]["text_offset"] == [0, 1]
    assert found["choices"][0]["logprobs"]["token_logprobs"] == [-0.5, -1.5]


TOPS = (
    TextToken(1, -0.5, 0, 1, ((1, -0.5), (3, -1.5))),
    TextToken(3, -3.0, 1, 2, ((2, -0.25), (4, -2.0))),
)
DECODE = {1: "a", 2: "b", 3: "c", 4: "b"}.__getitem__


def test_the_most_probable_tokens_of_a_chat() -> None:
    found = form(top_logprobs=True, decode=DECODE).whole([Delta(0, "ac", TOPS, "stop")], Usage(3, 2))
    first, second = found["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["logprob"]) == ("a", -0.5)
    assert first["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "c", "logprob": -1.5, "bytes": [99]},
    ]
    assert [one["token"] for one in second["top_logprobs"]] == ["b", "b"], "tokens of one text stay two"


def test_the_most_probable_tokens_of_a_completion() -> None:
    found = form(chat=False, top_logprobs=True, decode=DECODE)
    (choice,) = found.whole([Delta(0, "ac", TOPS, "stop")], Usage(3, 2))["choices"]
    # The sampled one is there, too; of two with one text the more probable one.
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.5, "c": -1.5}, {"b": -0.25, "c": -3.0}]
    assert form(chat=False).event(Delta(0, "ab", TOKENS))["choices"][0]["logprobs"]["top_logprobs"] is None


def test_events_of_a_chat() -> None:
    assert form().opening(1)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert form().event(Delta(1, "b"))["choices"][0] == {
        "index": 1,
        "delta": {"content": "b"},
        "logprobs": {"content": [], "refusal": None},
        "finish_reason": None,
    }
    last = form(logprobs=False).event(Delta(1, "", (), "stop"))
    assert last["choices"][0] == {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert form().closing(Usage(1, 2))["choices"] == []
    assert form().closing(Usage(1, 2))["usage"]["total_tokens"] == 3
    assert "prompt_tokens_details" not in form().closing(Usage(1, 2))["usage"]
    assert form().closing(Usage(5, 2, 0))["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    taken = form().closing(Usage(5, 2, 1, 4))["usage"]["prompt_tokens_details"]
    assert taken == {"cached_tokens": 1, "prefilled_tokens": 4}


def test_an_event_is_one_line() -> None:
    said = event({"text": "a\nb\r\u2028é"})
    assert said.startswith(b"data: {")
    assert said.endswith(b"}\n\n")
    assert said.count(b"\n") == 2
    assert b"\r" not in said
    assert json.loads(said.removeprefix(b"data: ")) == {"text": "a\nb\r\u2028é"}


def test_a_number_that_is_none_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"logprob": float("nan")})


def test_models() -> None:
    assert models("small", "step-1", 7, 100) == {
        "object": "list",
        "data": [model("small", "step-1", 7, 100)],
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (504, "server_error"),
    ],
)
def test_errors_have_openais_shape(status: int, kind: str) -> None:
    said = failure(ApiError("no", status=status, param="n", code="c"))
    assert json.loads(said.removeprefix(b"data: ")) == {
        "error": {"message": "no", "type": kind, "param": "n", "code": "c"}
    }
