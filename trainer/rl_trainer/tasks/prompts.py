"""Questions and answers from the rows of a file or data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_api.errors import TaskError
from rl_trainer.tasks.rows import Row
from rl_trainer.tasks.types import Message


@dataclass(frozen=True)
class FileItem:
    """One row: the question (text or a chat), the answer (None without one) and all of its fields."""

    question: str | tuple[Message, ...]
    answer: str | None
    fields: dict[str, Any]


def read_prompt(
    row: Row, prompt_field: str, answer_field: str, *, needs_answer: bool = True, unit: str = "line"
) -> FileItem:
    """Question and answer of one row.

    Args:
        row: of the file or data set.
        prompt_field: field with the question.
        answer_field: field with the answer.
        needs_answer: whether a row without an answer is an error.
        unit: what a row is called, for errors.

    Raises:
        TaskError: it cannot be used; the sentence names file, row and field.
    """
    fields, where = row.fields, row.where

    def field(name: str, setting: str) -> Any:
        if name not in fields:
            offered = ", ".join(fields) or "no fields"
            raise TaskError(f"{where}: there is no field {name!r} ({setting}), the {unit} has: {offered}")
        return fields[name]

    question = _question(field(prompt_field, "task.promptField"), where, prompt_field)
    if answer_field not in fields and not needs_answer:
        return FileItem(question, None, fields)
    answer = _answer(field(answer_field, "task.answerField"), answer_field, where, needs_answer)
    return FileItem(question, answer, fields)


def _question(value: Any, where: str, field: str) -> str | tuple[Message, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        return check_messages(value, f"{where}: field {field!r}")
    raise TaskError(
        f"{where}: field {field!r} is {_shown(value)}, allowed: text that is not empty, or chat messages"
    )


def check_messages(value: Any, where: str) -> tuple[Message, ...]:
    """The messages of a chat, the last one not the assistant's; TaskError when they are no messages."""
    messages = []
    for number, message in enumerate(value):
        if not (
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise TaskError(
                f"{where}, message {number}: found {_shown(message)}, "
                'allowed: {"role": "user", "content": "..."}'
            )
        messages.append({"role": message["role"], "content": message["content"]})
    if messages[-1]["role"] == "assistant":
        raise TaskError(
            f"{where}: the last message is the assistant's, allowed: one that asks for an answer (user)"
        )
    return tuple(messages)


def _answer(value: Any, name: str, where: str, needed: bool) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    if value is None and not needed:
        return None
    raise TaskError(f"{where}: field {name!r} is {_shown(value)}, allowed: text or a number")


def _shown(value: Any) -> str:
    empty = value in ([], None) or (isinstance(value, str) and not value.strip())
    return "empty" if empty else f"{value!r:.60}"
