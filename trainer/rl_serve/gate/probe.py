"""The probe set: questions of a service's own, and rules for their answers in which no run's reward has a part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from rl_api.errors import InvalidConfig, TaskError
from rl_api.printable import printable
from rl_trainer.error_text import reason
from rl_trainer.tasks.prompts import check_messages
from rl_trainer.tasks.rules import exact_match, last_number, number_matches
from rl_trainer.tasks.types import Message

Scorer = Literal["exact", "contains", "number"]
SCORERS: Final[tuple[str, ...]] = get_args(Scorer)
ANSWER_TOKENS: Final = 256
"""Longest answer to a question of the probe, unless another length is given."""


@dataclass(frozen=True)
class Question:
    """One line: text for /v1/completions, or messages for /v1/chat/completions, and the right answer."""

    content: str | tuple[Message, ...]
    answer: str


@dataclass(frozen=True)
class Probe:
    """Questions, how an answer is compared, and how long one may be, in tokens.

    `scorer`, white space around the texts left out: `exact`: the same text; `contains`: the right answer stands somewhere in
    what was answered; `number`: the last numbers of both are equal within 1e-6.
    """

    questions: tuple[Question, ...]
    scorer: Scorer
    max_new_tokens: int = ANSWER_TOKENS

    def right(self, number: int, text: str) -> bool:
        """Whether `text` answers question `number`."""
        answer = self.questions[number].answer
        match self.scorer:
            case "exact":
                return exact_match(text, answer)
            case "contains":
                return answer.strip() in text
            case "number":
                return number_matches(text, answer)


def read_probe(file: Path, scorer: str, max_new_tokens: int = ANSWER_TOKENS) -> Probe:
    """The probe in a JSONL file.

    Raises:
        InvalidConfig: it cannot be read, or a line cannot be used.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"probe: {file} cannot be read ({reason(error)})") from None
    return parse_probe(str(file), content, scorer, max_new_tokens)


def parse_probe(name: str, content: bytes, scorer: str, max_new_tokens: int = ANSWER_TOKENS) -> Probe:
    """The probe in the bytes of a JSONL file, one object in a line: "prompt" (text) or "messages", and "answer" (text or a
    number); other fields are left alone.

    Raises:
        InvalidConfig: the scorer is unknown, there is no line, or one cannot be used; the sentence names file and line.
    """
    if scorer not in SCORERS:
        raise InvalidConfig(f"probe: found scorer {printable(scorer, 40)}, allowed: {', '.join(SCORERS)}")
    questions = tuple(_questions(name, content, scorer))
    if not questions:
        raise InvalidConfig(f"probe: {name} has no lines, allowed: at least one question with its answer")
    return Probe(questions, scorer, max_new_tokens)  # type: ignore[arg-type]


def _questions(name: str, content: bytes, scorer: str) -> Iterator[Question]:
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            yield _question(f"probe: {name}:{number}", line, scorer)


def _question(where: str, line: bytes, scorer: str) -> Question:
    try:
        fields = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise InvalidConfig(f"{where}: not a JSON object: {_shown(line.decode(errors='replace'))}") from None
    if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
        raise InvalidConfig(
            f"{where}: found {_shown(line.decode())}, allowed: an object with either prompt or messages, and answer"
        )
    answer = fields.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = json.dumps(answer)
    if not isinstance(answer, str) or not answer.strip():
        raise InvalidConfig(
            f"{where}: found answer {_shown(answer)}, allowed: text that is not empty, or a number"
        )
    if scorer == "number" and last_number(answer) is None:
        raise InvalidConfig(
            f"{where}: found answer {_shown(answer)}, allowed with scorer number: one with a number"
        )
    return Question(_content(where, fields), answer)


def _content(where: str, fields: dict[str, Any]) -> str | tuple[Message, ...]:
    if "prompt" in fields:
        prompt = fields["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise InvalidConfig(f"{where}: found prompt {_shown(prompt)}, allowed: text that is not empty")
        return prompt
    messages = fields["messages"]
    if not isinstance(messages, list) or not messages:
        raise InvalidConfig(f"{where}: found messages {_shown(messages)}, allowed: a list of messages")
    try:
        return check_messages(messages, f"{where}, messages")
    except TaskError as error:
        raise InvalidConfig(str(error)) from None


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value), 60)
