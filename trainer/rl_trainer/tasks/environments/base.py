"""The class that a user writes to make an environment; `Calculator` is one to copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rl_trainer.tasks.types import Message, StepResult


class EnvironmentClass(Protocol):
    """One dialogue. `item` is what it is about, `args` is `task.args`.

    A class may also offer `generate` and `solution`: without `generate`, `task.file` must hold the items, and
    without `solution` there is no warm start.

        @staticmethod
        def generate(rng: random.Random, args: Mapping[str, Any]) -> dict[str, Any]:
            a new item, drawn from `rng` and nothing else; its field `answer`, where it has one, is the right
            answer

        @staticmethod
        def solution(item: Mapping[str, Any], args: Mapping[str, Any]) -> Sequence[str]:
            the turns of a perfect model
    """

    def __init__(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> None: ...

    def reset(self) -> str | Sequence[Message]:
        """The question: text or chat messages. It follows from `item` and `args` alone."""
        ...

    def step(self, completion: str) -> StepResult:
        """The answer to one turn of the model. What the model wrote may be anything: never raise on it."""
        ...


def answered_by(tool: Callable[[str], Iterable[str]], call: re.Pattern[str], completion: str) -> StepResult:
    """A turn of a model that has one tool: what it answers to the first call in the turn, each text on a line of its own;
    a turn without a call ends the dialogue.

    Args:
        tool: is given what is asked.
        call: how it is called; the first group is what is asked.
        completion: the turn.
    """
    found = call.search(completion)
    if found is None:
        return StepResult(done=True)
    return StepResult("".join(f"{text}\n" for text in tool(found.group(1))))
