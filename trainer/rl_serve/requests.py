"""From the body of a request to what shall be generated, or one sentence that says what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_serve.errors import ApiError
from rl_serve.fields import Fields, parse_object, text, wrong

# As many as OpenAI has.
MOST_LOGPROBS: Final = 20
MOST_SEQUENCES: Final = 128
_MOST_STOPS, _LONGEST_STOP = 16, 200
_MOST_MESSAGES: Final = 2000
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")

# Say who asks and how the answer is kept: nothing that this server does.
_IGNORED: Final = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
)
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
}
_NEUTRAL_CHAT: Final = _NEUTRAL | {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
_NEUTRAL_COMPLETION: Final = _NEUTRAL | {"best_of": (1,), "echo": (False,), "suffix": ("",)}


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
        model: the only name that the field `model` may have.
        context: most tokens of a prompt with its answer.
        max_new_tokens: most tokens of an answer.
        sequences: most answers of one request, over all its prompts.
    """

    model: str
    context: int
    max_new_tokens: int
    sequences: int


@dataclass(frozen=True)
class Request:
    """What shall be generated.

    Attributes:
        prompts: of a completion, each a text or token ids; empty for a chat.
        messages: of a chat, each `role` and `content`; empty for a completion.
        n: answers for each prompt.
        max_tokens: most tokens of each, None: the server's choice.
        temperature, top_p, top_k: as in `SamplingParams`.
        seed: None: another one every time.
        stop: texts that end an answer.
        logprobs: the tokens and their log-probabilities are part of the answer.
        top_logprobs: so are those of so many most probable tokens at each place.
        stream: pieces come as they are made.
        include_usage: the last event of a stream counts tokens.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    messages: tuple[Mapping[str, str], ...]
    n: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    logprobs: bool
    top_logprobs: int
    stream: bool
    include_usage: bool

    @property
    def chat(self) -> bool:
        """Whether it is a chat; else a completion."""
        return bool(self.messages)

    @property
    def sequences(self) -> int:
        """Answers over all prompts."""
        return self.n * max(1, len(self.prompts))


def parse_chat(body: bytes, limits: Limits) -> Request:
    """The body of a request to /v1/chat/completions.

    Raises:
        ApiError: one sentence about the first mistake.
    """
    fields = Fields(parse_object(body))
    _model(fields, limits)
    messages = parse_messages("messages", fields.take("messages"))
    newer, older = (_max_tokens(fields, name, limits) for name in ("max_completion_tokens", "max_tokens"))
    logprobs, top = fields.flag("logprobs"), fields.whole("top_logprobs", 0, 0, MOST_LOGPROBS)
    if top and not logprobs:
        raise wrong("top_logprobs", top, "0 where logprobs is not true")
    fields.only(_NEUTRAL_CHAT)
    return _request(fields, limits, (), messages, newer or older, top if logprobs else None)


def parse_completion(body: bytes, limits: Limits) -> Request:
    """The body of a request to /v1/completions.

    Raises:
        ApiError: one sentence about the first mistake.
    """
    fields = Fields(parse_object(body))
    _model(fields, limits)
    prompts = _prompts(fields.take("prompt"), limits)
    tokens = _max_tokens(fields, "max_tokens", limits)
    wanted = fields.whole(
        "logprobs", -1, 0, MOST_LOGPROBS, ", of the most probable tokens; null for no log-probabilities"
    )
    fields.only(_NEUTRAL_COMPLETION)
    return _request(fields, limits, prompts, (), tokens, None if wanted < 0 else wanted)


def _request(
    fields: Fields,
    limits: Limits,
    prompts: tuple[str | tuple[int, ...], ...],
    messages: tuple[Mapping[str, str], ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> Request:
    """What both kinds have in common; `logprobs`: of how many tokens besides those sampled, None: of none at all."""
    temperature = fields.number("temperature", 1.0, "a number from 0 to 2", 0.0, 2.0)
    if 0 < temperature < 0.01:
        raise wrong("temperature", temperature, "0 (the most likely token), or 0.01 to 2")
    top_p = fields.number("top_p", 1.0, "a number above 0, at most 1", 1e-6, 1.0)
    stream = fields.flag("stream")
    request = Request(
        prompts=prompts,
        messages=messages,
        n=fields.whole("n", 1, 1, limits.sequences, " (answers that one request may have here)"),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=fields.whole("top_k", 0, 0, 1_000_000),
        seed=_seed(fields),
        stop=fields.texts("stop", _MOST_STOPS, _LONGEST_STOP),
        logprobs=logprobs is not None,
        top_logprobs=logprobs or 0,
        stream=stream,
        include_usage=_include_usage(fields, stream),
    )
    fields.ignore(_IGNORED)
    fields.end()
    if request.sequences > limits.sequences:
        raise ApiError(
            f"prompt: found {len(prompts)} prompts with n {request.n}, allowed: at most {limits.sequences} answers in one "
            "request",
            param="prompt",
        )
    return request


def _model(fields: Fields, limits: Limits) -> None:
    name = fields.take("model")
    if name is None:
        return
    if text("model", name) != limits.model:
        raise ApiError(
            wrong("model", name, limits.model).message, status=404, param="model", code="model_not_found"
        )


def _max_tokens(fields: Fields, name: str, limits: Limits) -> int | None:
    return fields.whole(name, 0, 1, limits.max_new_tokens, " (--max-new-tokens of this server)") or None


def _seed(fields: Fields) -> int | None:
    missing = 2**64
    seed = fields.whole("seed", missing, -(2**63), 2**63 - 1)
    return None if seed == missing else seed


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.take("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise wrong("stream_options", options, "an object", "invalid_type")
    if not stream:
        raise wrong("stream_options", options, "null where stream is not true")
    inner = Fields(options, "stream_options")
    found = inner.take("include_usage")
    if not isinstance(found, bool | None):
        raise wrong("stream_options.include_usage", found, "true or false", "invalid_type")
    inner.ignore(["include_obfuscation"])
    inner.end()
    return bool(found)


def parse_messages(name: str, found: Any) -> tuple[Mapping[str, str], ...]:
    """Messages of a chat (`role` and `content`) from the field `name`. Raises ApiError."""
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_MESSAGES:
        allowed = f"a list of 1 to {_MOST_MESSAGES} messages, each with role and content"
        raise wrong(name, found, allowed, "invalid_type")
    return tuple(_message(f"{name}[{number}]", message) for number, message in enumerate(found))


def _message(name: str, found: Any) -> Mapping[str, str]:
    if not isinstance(found, dict):
        raise wrong(name, found, "an object with role and content", "invalid_type")
    fields = Fields(found, name)
    role, content = fields.take("role"), fields.take("content")
    if role not in _ROLES:
        raise wrong(f"{name}.role", role, ", ".join(_ROLES))
    fields.ignore(["name", "tool_call_id", "refusal", "annotations", "audio"])
    fields.only({"tool_calls": ([],), "function_call": ()})
    fields.end()
    # What OpenAI's newer models call developer is the system message of every chat template.
    return {
        "role": "system" if role == "developer" else role,
        "content": _content(f"{name}.content", content),
    }


def _content(name: str, found: Any) -> str:
    if isinstance(found, str):
        return text(name, found)
    allowed = 'a string, or a list of {"type": "text", "text": ...}'
    if not isinstance(found, list):
        raise wrong(name, found, allowed, "invalid_type")
    parts = []
    for part in found:
        if not isinstance(part, dict) or part.get("type") != "text" or set(part) != {"type", "text"}:
            raise wrong(name, part, allowed)
        parts.append(text(name, part["text"]))
    return "".join(parts)


def _prompts(found: Any, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
    allowed = "a string, a list of token ids, or a list of several of these"
    if isinstance(found, str):
        return (text("prompt", found),)
    if not isinstance(found, list) or not found:
        raise wrong("prompt", found, allowed, "invalid_type")
    if all(map(_is_token, found)):
        return (tuple(found),)
    if len(found) > limits.sequences:
        raise ApiError(
            f"prompt: found {len(found)} prompts, allowed: at most {limits.sequences} answers in one request",
            param="prompt",
        )
    prompts: list[str | tuple[int, ...]] = []
    for one in found:
        if isinstance(one, str):
            prompts.append(text("prompt", one))
        elif isinstance(one, list) and one and all(map(_is_token, one)):
            prompts.append(tuple(one))
        else:
            raise wrong("prompt", one, allowed, "invalid_type")
    return tuple(prompts)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
