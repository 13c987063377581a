"""Bodies of requests: what is taken, and the sentence about what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl_serve.errors import ApiError
from rl_serve.requests import Limits, Request, parse_chat, parse_completion

LIMITS = Limits(model="small", context=100, max_new_tokens=50, sequences=8)
SAY = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Request:
    return parse_chat(json.dumps({"messages": SAY, **fields}).encode(), LIMITS)


def completion(**fields: Any) -> Request:
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode(), LIMITS)


def test_a_chat_with_nothing_but_messages_has_openais_defaults() -> None:
    found = chat()
    assert found.chat
    assert found.messages == ({"role": "user", "content": "hi"},)
    assert (found.n, found.max_tokens, found.seed, found.stop) == (1, None, None, ())
    assert (found.temperature, found.top_p, found.top_k) == (1.0, 1.0, 0)
    assert not (found.stream or found.logprobs or found.include_usage)
    assert found.sequences == 1


def test_every_field_of_a_chat() -> None:
    found = chat(
        model="small",
        max_completion_tokens=7,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=-1,
        stop="x",
        n=2,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        user="me",
        metadata={"a": "b"},
        tools=[],
        frequency_penalty=0,
        response_format={"type": "text"},
    )
    assert (found.max_tokens, found.temperature, found.top_p, found.top_k, found.seed) == (7, 0.0, 0.5, 3, -1)
    assert (found.stop, found.n, found.logprobs, found.stream) == (("x",), 2, True, True)
    assert found.include_usage


def test_null_is_as_good_as_nothing() -> None:
    names = (
        "temperature",
        "stop",
        "n",
        "seed",
        "max_tokens",
        "tools",
        "logprobs",
        "stream",
        "stream_options",
    )
    assert chat(**dict.fromkeys(names)) == chat()


def test_messages_have_parts_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = chat(messages=[{"role": "developer", "content": "be"}, {"role": "user", "content": parts}])
    assert [(one["role"], one["content"]) for one in found.messages] == [("system", "be"), ("user", "ab")]


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        ("", ("",)),
    ],
)
def test_prompts(prompt: Any, found: Any) -> None:
    assert completion(prompt=prompt).prompts == found
    assert completion(prompt=prompt, n=2).sequences == 2 * len(found)
    assert not completion(prompt=prompt).chat


def test_log_probabilities_of_a_completion_are_a_number() -> None:
    assert completion(logprobs=0).logprobs
    assert [completion(logprobs=one).top_logprobs for one in (None, 0, 20)] == [0, 0, 20]
    found = chat(logprobs=True, top_logprobs=20)
    assert (found.logprobs, found.top_logprobs) == (True, 20)
    assert (chat(top_logprobs=0).logprobs, chat(logprobs=True).top_logprobs) == (False, 0)
    assert not completion(logprobs=None).logprobs


@pytest.mark.parametrize("name", ["prompt", "temperature", "logit_bias", "metadata", "unknown"])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_too_deeply_is_a_mistake_of_the_client(name: str, opens: str, closes: str) -> None:
    for depth in (100, *range(800, 1000, 10), 100_000):
        body = f'{{"prompt": "a", "{name}": {opens * depth}1{closes * depth}}}'
        with pytest.raises(ApiError, match="the request's body") as caught:
            parse_completion(body.encode(), LIMITS)
        assert (caught.value.status, caught.value.code) == (400, "invalid_json")


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -1}, "temperature", "temperature: found -1, allowed: a number from 0 to 2"),
    (
        {"temperature": 1e-9},
        "temperature",
        "temperature: found 1e-09, allowed: 0 (the most likely token), or 0.01 to 2",
    ),
    ({"temperature": "hot"}, "temperature", 'temperature: found "hot", allowed: a number from 0 to 2'),
    ({"temperature": True}, "temperature", "temperature: found true, allowed: a number from 0 to 2"),
    ({"top_p": 0}, "top_p", "top_p: found 0, allowed: a number above 0, at most 1"),
    (
        {"n": 9},
        "n",
        "n: found 9, allowed: a whole number from 1 to 8 (answers that one request may have here)",
    ),
    (
        {"n": 1.5},
        "n",
        "n: found 1.5, allowed: a whole number from 1 to 8 (answers that one request may have here)",
    ),
    (
        {"max_tokens": 51},
        "max_tokens",
        "max_tokens: found 51, allowed: a whole number from 1 to 50 (--max-new-tokens of this server)",
    ),
    (
        {"seed": 2**70},
        "seed",
        f"seed: found {2**70}, allowed: a whole number from {-(2**63)} to {2**63 - 1}",
    ),
    (
        {"stop": ["a", ""]},
        "stop",
        'stop: found ["a", ""], allowed: a string or a list of at most 16, each of 1 to 200 characters',
    ),
    (
        {"stop": 3},
        "stop",
        "stop: found 3, allowed: a string or a list of at most 16, each of 1 to 200 characters",
    ),
    ({"stream": "yes"}, "stream", 'stream: found "yes", allowed: true or false'),
    (
        {"stream_options": {}},
        "stream_options",
        "stream_options: found {}, allowed: null where stream is not true",
    ),
    ({"stream_options": 1}, "stream_options", "stream_options: found 1, allowed: an object"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "stream_options.include_usage: found 1, allowed: true or false",
    ),
    (
        {"stream": True, "stream_options": {"usage": True}},
        "stream_options.usage",
        "stream_options.usage: unknown field; take it out",
    ),
    ({"model": "gpt-4"}, "model", 'model: found "gpt-4", allowed: small'),
    ({"model": 4}, "model", "model: found 4, allowed: a string"),
    ({"tempratur": 1}, "tempratur", "tempratur: unknown field; take it out"),
    (
        {"frequency_penalty": 1},
        "frequency_penalty",
        "frequency_penalty: found 1, allowed: 0: this server does not have it",
    ),
]
WRONG_CHAT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"max_completion_tokens": 0},
        "max_completion_tokens",
        "max_completion_tokens: found 0, allowed: a whole number from 1 to 50 (--max-new-tokens of this server)",
    ),
    (
        {"messages": "hi"},
        "messages",
        'messages: found "hi", allowed: a list of 1 to 2000 messages, each with role and content',
    ),
    (
        {"messages": [3]},
        "messages[0]",
        "messages[0]: found 3, allowed: an object with role and content",
    ),
    (
        {"messages": [{"role": "king", "content": ""}]},
        "messages[0].role",
        'messages[0].role: found "king", allowed: system, developer, user, assistant, tool',
    ),
    (
        {"messages": [*SAY, {"role": "user"}]},
        "messages[1].content",
        'messages[1].content: found null, allowed: a string, or a list of {"type": "text", "text": ...}',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        'messages[0].content: found {"type": "image_url"}, allowed: a string, or a list of {"type": "text", "text": ...}',
    ),
    (
        {"messages": [{"role": "user", "content": "\ud800"}]},
        "messages[0].content",
        'messages[0].content: found "?", allowed: Unicode text, without lone surrogates',
    ),
    ({"top_logprobs": 5}, "top_logprobs", "top_logprobs: found 5, allowed: 0 where logprobs is not true"),
    (
        {"logprobs": True, "top_logprobs": 21},
        "top_logprobs",
        "top_logprobs: found 21, allowed: a whole number from 0 to 20",
    ),
    ({"logprobs": 5}, "logprobs", "logprobs: found 5, allowed: true or false"),
    (
        {"messages": [{**SAY[0], "function_call": {"name": "f"}}]},
        "messages[0].function_call",
        'messages[0].function_call: found {"name": "f"}, allowed: null: this server does not have it',
    ),
    (
        {"messages": [*SAY, {**SAY[0], "weight": 1}]},
        "messages[1].weight",
        "messages[1].weight: unknown field; take it out",
    ),
    ({"tools": [{}]}, "tools", "tools: found [{}], allowed: []: this server does not have it"),
]
WRONG_COMPLETION: list[tuple[dict[str, Any], str, str]] = [
    (
        {"prompt": None},
        "prompt",
        "prompt: found null, allowed: a string, a list of token ids, or a list of several of these",
    ),
    (
        {"prompt": ["a", -1]},
        "prompt",
        "prompt: found -1, allowed: a string, a list of token ids, or a list of several of these",
    ),
    (
        {"prompt": ["a"] * 9},
        "prompt",
        "prompt: found 9 prompts, allowed: at most 8 answers in one request",
    ),
    (
        {"prompt": ["a"] * 3, "n": 3},
        "prompt",
        "prompt: found 3 prompts with n 3, allowed: at most 8 answers in one request",
    ),
    (
        {"logprobs": 21},
        "logprobs",
        "logprobs: found 21, allowed: a whole number from 0 to 20, of the most probable tokens; null for no "
        "log-probabilities",
    ),
    (
        {"logprobs": True},
        "logprobs",
        "logprobs: found true, allowed: a whole number from 0 to 20, of the most probable tokens; null for no "
        "log-probabilities",
    ),
    (
        {"logprobs": False},
        "logprobs",
        "logprobs: found false, allowed: a whole number from 0 to 20, of the most probable tokens; null for no "
        "log-probabilities",
    ),
    ({"echo": True}, "echo", "echo: found true, allowed: false: this server does not have it"),
]


@pytest.mark.parametrize(("fields", "param", "sentence"), WRONG + WRONG_CHAT)
def test_a_mistake_in_a_chat(fields: dict[str, Any], param: str, sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value
    assert (error.message, error.param) == (sentence, param)
    assert error.status == (404 if fields.get("model") == "gpt-4" else 400)
    assert error.body()["error"]["type"] == "invalid_request_error"
    assert error.code


@pytest.mark.parametrize(("fields", "param", "sentence"), WRONG + WRONG_COMPLETION)
def test_a_mistake_in_a_completion(fields: dict[str, Any], param: str, sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.message, caught.value.param) == (sentence, param)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            b'{"logit_bias": ' + b"[" * 64 + b"]" * 64 + b"}",
            "the request's body: found values within more than 64 others, allowed: at most as many",
        ),
        (b"", "the request's body is no JSON (Expecting value: line 1 column 1 (char 0))"),
        (b"[]", "the request's body: found [], allowed: a JSON object"),
        (b'{"seed": NaN}', "the request's body is no JSON (NaN is no JSON)"),
        (b"[" * 100_000, "the request's body is no JSON"),
        (b"\xff\xfe\xff", "the request's body is no JSON"),
    ],
)
def test_what_is_no_json_object(body: bytes, sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(body, LIMITS)
    assert caught.value.message.startswith(sentence)
    assert caught.value.code == "invalid_json"


def test_found_values_are_one_printable_line() -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{"a\n\x1b[31m" * 50: 1})
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200
