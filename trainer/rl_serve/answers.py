"""Answers as OpenAI's clients read them: objects, the events of a stream, log-probabilities, usage. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rl_serve.detokenize import TextToken
from rl_serve.errors import ApiError

DONE: Final = b"data: [DONE]\n\n"
# How a token is written that is a part of a character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Delta:
    """What came for one answer: its index, text, tokens, and at the end why it ended (`stop` or `length`)."""

    index: int
    text: str
    tokens: tuple[TextToken, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class Mark:
    """From its token `token` on, counted from 0, the answer `index` was written by `version` of the policy."""

    index: int
    version: str
    token: int


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: of its prompts, and of all its answers; of the prompts, those that the engine knew already, and
    those whose keys and values another copy has computed."""

    prompt: int
    completion: int
    cached: int | None = None
    prefilled: int = 0

    def body(self) -> dict[str, Any]:
        """The answer's `usage`."""
        counted: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }
        if self.cached is not None:
            counted["prompt_tokens_details"] = {"cached_tokens": self.cached}
            if self.prefilled:
                counted["prompt_tokens_details"]["prefilled_tokens"] = self.prefilled
        return counted


@dataclass(frozen=True)
class Form:
    """How the answers to one request are written.

    Attributes:
        id: the request's.
        created: seconds since 1970.
        model: its name.
        version: of the policy.
        chat: a chat; else a completion.
        logprobs: with log-probabilities.
        top_logprobs: with those of the most probable tokens, too.
        decode: one token's text.
    """

    id: str
    created: int
    model: str
    version: str
    chat: bool
    logprobs: bool
    top_logprobs: bool
    decode: Callable[[int], str]

    def whole(
        self, deltas: Sequence[Delta], usage: Usage, marks: Sequence[Mark] | None = None
    ) -> dict[str, Any]:
        """The answer that is not streamed; `deltas`: one for each answer, whole; `marks`: where it shall say so."""
        choices = []
        for delta in deltas:
            said: dict[str, Any] = (
                {"message": {"role": "assistant", "content": delta.text, "refusal": None}}
                if self.chat
                else {"text": delta.text}
            )
            choices.append(self._choice(delta, said))
        kind = "chat.completion" if self.chat else "text_completion"
        return self._head(kind) | {"choices": choices, "usage": usage.body()} | versions(marks)

    def opening(self, index: int) -> dict[str, Any]:
        """The first event of an answer of a chat: who speaks."""
        return self._chunk([self._choice(Delta(index, ""), {"delta": {"role": "assistant", "content": ""}})])

    def event(self, delta: Delta, marks: Sequence[Mark] | None = None) -> dict[str, Any]:
        """A piece of an answer; `marks`: in the last one, where it shall say so."""
        said = {"delta": {"content": delta.text} if delta.text else {}} if self.chat else {"text": delta.text}
        return self._chunk([self._choice(delta, said)]) | versions(marks)

    def closing(self, usage: Usage) -> dict[str, Any]:
        """The last event, which counts tokens."""
        return self._chunk([]) | {"usage": usage.body()}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._head(kind) | {"choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.version,
            "policy_version": self.version,
        }

    def _choice(self, delta: Delta, said: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "index": delta.index,
            **said,
            "logprobs": self._logprobs(delta) if self.logprobs and (delta.tokens or delta.text) else None,
            "finish_reason": delta.finish_reason,
        }

    def _by_text(self, token: TextToken) -> dict[str, float]:
        """The most probable tokens and the one that was sampled; of several with one text the most probable."""
        found: dict[str, float] = {}
        for other, logprob in (*token.top, (token.id, token.logprob)):
            found.setdefault(self.decode(other), logprob)
        return found

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        texts = [self.decode(token.id) for token in delta.tokens]
        if self.chat:
            content = [
                _of_chat(text, token.logprob)
                | {"top_logprobs": [_of_chat(self.decode(other), value) for other, value in token.top]}
                for text, token in zip(texts, delta.tokens, strict=True)
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in delta.tokens],
            "top_logprobs": [self._by_text(token) for token in delta.tokens] if self.top_logprobs else None,
            "text_offset": [token.start for token in delta.tokens],
        }


def _of_chat(text: str, logprob: float) -> dict[str, Any]:
    return {
        "token": text,
        "logprob": logprob,
        "bytes": None if _INCOMPLETE in text else list(text.encode()),
    }


def versions(marks: Sequence[Mark] | None) -> dict[str, Any]:
    """The field that says which version of the policy wrote what; None: no field."""
    if marks is None:
        return {}
    said = [{"index": mark.index, "version": mark.version, "token": mark.token} for mark in marks]
    return {"policy_versions": said}


def event(content: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no line end outside of escapes, so it is one line."""
    return b"data: " + dumps(content) + b"\n\n"


def failure(error: ApiError) -> bytes:
    """The event that ends a stream which cannot go on; no [DONE] follows."""
    return event(error.body())


def dumps(content: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8; a number that is none would be no JSON, so it raises ValueError."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def models(name: str, version: str, created: int, context: int) -> dict[str, Any]:
    """What /v1/models answers."""
    return {"object": "list", "data": [model(name, version, created, context)]}


def model(name: str, version: str, created: int, context: int) -> dict[str, Any]:
    """What /v1/models/NAME answers; `context`: most tokens of a prompt with its answer."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "rltrain",
        "policy_version": version,
        "max_model_len": context,
    }
