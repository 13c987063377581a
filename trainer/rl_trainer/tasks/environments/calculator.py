"""Tool use in its smallest form: arithmetic with a calculator. Copy this file to write an environment.

    question     12+34=          (args: operands, values and operators)
    model        <12+34>         a call of the calculator: an expression between < and >
    calculator   46              its answer, or `error: ...`, on a line of its own
    model        46              a turn without a call is the answer, and ends the dialogue

A model that can only copy gets every answer right with the tool; without it, it would have to learn to add.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from rl_api.errors import TaskError
from rl_trainer.tasks.arithmetic import evaluate, shown
from rl_trainer.tasks.environments.base import answered_by
from rl_trainer.tasks.types import StepResult

_TRIES = 1000
_CALL = re.compile(r"<([^<>]*)>")
_DEFAULTS: dict[str, Any] = {
    "min_operands": 2,
    "max_operands": 2,
    "min_value": 0,
    "max_value": 99,
    "operators": "+-",
}


class Calculator:
    """A dialogue about one arithmetic question.

    Args:
        item: {"question", "answer", "expression"}.
        args: `min_operands` (2), `max_operands` (2), `min_value` (0), `max_value` (99): whole numbers, both
            ends included; `operators` ("+-"): each a character of `+-*/%`.
    """

    def __init__(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        self._question = str(item["question"])

    @staticmethod
    def generate(rng: random.Random, args: Mapping[str, Any]) -> dict[str, Any]:
        """A question that has an answer (nothing is divided by zero). TaskError: wrong arguments."""
        options = _options(args)
        for _ in range(_TRIES):
            count = rng.randint(options["min_operands"], options["max_operands"])
            expression = _operand(rng, options)
            for _ in range(count - 1):
                expression += rng.choice(options["operators"]) + _operand(rng, options)
            try:
                answer = shown(evaluate(expression))
            except ValueError:
                continue
            return {"question": f"{expression}=", "answer": answer, "expression": expression}
        raise TaskError(
            f"task.args: calculator found no question with an answer in {_TRIES} tries (all divide by zero)"
        )

    @staticmethod
    def solution(item: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
        """Call the calculator, then say what it said."""
        return [f"<{item['expression']}>", str(item["answer"])]

    def reset(self) -> str:
        """The question."""
        return self._question

    def step(self, completion: str) -> StepResult:
        """Calculates the first call in the turn; a turn without one ends the dialogue."""
        return answered_by(_calculated, _CALL, completion)


def _calculated(expression: str) -> list[str]:
    try:
        return [shown(evaluate(expression))]
    except ValueError as error:
        return [f"error: {error}"]


def _operand(rng: random.Random, options: Mapping[str, Any]) -> str:
    value = rng.randint(options["min_value"], options["max_value"])
    return str(value) if value >= 0 else f"({value})"


def _options(args: Mapping[str, Any]) -> dict[str, Any]:
    options = {**_DEFAULTS, **args}
    for name, value in options.items():
        if name not in _DEFAULTS:
            raise TaskError(
                f"task.args.{name}: calculator has no such argument; it has {', '.join(_DEFAULTS)}"
            )
        if name == "operators":
            if not isinstance(value, str) or not value or set(value) - set("+-*/%"):
                raise TaskError(f"task.args.operators: found {value!r}, allowed: characters of +-*/%")
        elif type(value) is not int or abs(value) > 10**9:
            raise TaskError(f"task.args.{name}: found {value!r}, allowed: a whole number of at most 10^9")
    low, high = options["min_operands"], options["max_operands"]
    if not 1 <= low <= high <= 10:
        raise TaskError(
            f"task.args: found min_operands {low} and max_operands {high}, allowed: 1 <= min <= max <= 10"
        )
    if options["min_value"] > options["max_value"]:
        raise TaskError(
            f"task.args.min_value: found {options['min_value']}, "
            f"allowed: at most max_value ({options['max_value']})"
        )
    return options
