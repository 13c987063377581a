"""What a row asks, what is written for it, and with which number its random draws begin. Pure."""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rl_serve.errors import ApiError
from rl_serve.fields import text, wrong
from rl_serve.requests import parse_messages
from rl_trainer.storage.files import dump_json

ADDED: Final = ("completion", "finish_reason", "prompt_tokens", "completion_tokens", "error")
"""Columns that every row of the output has besides its own, in this order."""


class RowError(Exception):
    """A row that cannot be answered; `str` is the sentence of its `error`."""


@dataclass(frozen=True)
class Columns:
    """Names of columns: where a row's question stands, and what `ADDED` ones begin with."""

    prompt: str = "prompt"
    messages: str = "messages"
    prefix: str = ""

    @property
    def added(self) -> tuple[str, ...]:
        """`ADDED` as they are named in the output."""
        return tuple(self.prefix + name for name in ADDED)


@dataclass(frozen=True)
class Question:
    """What is asked: a text, token ids, or the messages of a chat; exactly one of `prompt` and `messages` is there."""

    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Answer:
    """One completion: its text, why it ended (`stop` or `length`), and the number of its tokens."""

    text: str
    finish_reason: str
    tokens: int


@dataclass(frozen=True)
class Outcome:
    """What became of a row: its answers and the number of its prompt's tokens, or the sentence that says why not."""

    answers: tuple[Answer, ...] = ()
    prompt_tokens: int = 0
    error: str = ""


def question(row: Mapping[str, Any], columns: Columns) -> Question:
    """What `row` asks; a column that is null counts as missing.

    Raises:
        RowError: nothing can be asked with it.
    """
    if taken := [name for name in columns.added if name in row]:
        raise RowError(f"{taken[0]}: the row has a column of this name already (--added-prefix)")
    prompt, messages = row.get(columns.prompt), row.get(columns.messages)
    if (prompt is None) == (messages is None):
        found = "neither" if prompt is None else "both"
        raise RowError(f"found {found} of {columns.prompt} and {columns.messages}, allowed: one of them")
    try:
        if messages is not None:
            return Question(messages=parse_messages(columns.messages, plain(messages)))
        return Question(prompt=_prompt(columns.prompt, prompt))
    except ApiError as error:
        raise RowError(error.message) from None


def _prompt(name: str, found: Any) -> str | tuple[int, ...]:
    if isinstance(found, str):
        return text(name, found)
    if isinstance(found, list) and found and all(type(one) is int and 0 <= one < 2**31 for one in found):
        return tuple(found)
    raise wrong(name, plain(found), "a string, or a list of token ids", "invalid_type")


def seeds(seed: int, row: Mapping[str, Any], n: int) -> list[int]:
    """Seeds of 64 bits for the `n` answers of a row.

    They depend on `seed` and on what the row holds, in whatever order its columns stand, and not on where it stands: it has
    the same answers in another file, another order, or beside other rows.
    """
    content = dump_json(_ordered(plain(row))).encode("utf-8", "surrogatepass")
    key = hashlib.blake2b(content, digest_size=16).hexdigest()
    return [_number(f"{seed}/{key}/{index}") for index in range(n)]


def _number(words: str) -> int:
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big")


def _ordered(value: Any) -> Any:
    """Without what is null: a parquet file has a value for each column, where a line of JSON leaves it out."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value) if value[name] is not None}
    if isinstance(value, list):
        return [_ordered(one) for one in value]
    return value


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: bytes are base64, times ISO 8601, decimals text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return str(value)


def added(outcomes: Sequence[Outcome], columns: Columns, n: int) -> dict[str, list[Any]]:
    """The added columns of rows, by name. With `n` above 1 those of an answer hold lists of `n`; none: null."""

    def values(name: str) -> list[Any]:
        lists = [[getattr(answer, name) for answer in outcome.answers] or None for outcome in outcomes]
        return lists if n > 1 else [one and one[0] for one in lists]

    made = (
        values("text"),
        values("finish_reason"),
        [None if outcome.error else outcome.prompt_tokens for outcome in outcomes],
        values("tokens"),
        [outcome.error or None for outcome in outcomes],
    )
    return dict(zip(columns.added, made, strict=True))
