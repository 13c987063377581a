"""The user's functions and classes as they are called: inside the process that may be killed (`killable.py`)."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from rl_api.errors import TaskError
from rl_trainer.tasks.answers import CallError, Failure
from rl_trainer.tasks.environments.base import EnvironmentClass
from rl_trainer.tasks.functions import file_of, load_class, load_function
from rl_trainer.tasks.killable import called
from rl_trainer.tasks.types import StepResult


class RewardFunction:
    """A reward function, by module:function; `search`: folder looked in first, `path`: the reward's place in the run.

    Raises TaskError when it cannot be loaded, or does not take three arguments.
    """

    def __init__(self, name: str, search: Path | None, path: str) -> None:
        self._function = load_function(name, search, f"{path}.function")
        self.file = file_of(self._function)
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # written in C
            return
        try:
            signature.bind({}, "", "")
        except TypeError:
            raise TaskError(
                f"{path}.function: {name} takes {signature}, "
                "allowed: three arguments (prompt, completion, answer)"
            ) from None

    def value(self, prompt: dict[str, Any], completion: str, answer: str) -> float | dict[str, float]:
        """What it returns, as plain numbers. CallError: it is none."""
        value = self._function(prompt, completion, answer)
        if isinstance(value, Mapping):
            return {str(key): as_number(part, f" for {key!r}") for key, part in value.items()}
        return as_number(value)


class Environments:
    """An environment's class, or where it is found (module:Class, folder looked in first), and its dialogues by number.

    Raises TaskError when it cannot be loaded or lacks a method.
    """

    passes: ClassVar = (TaskError,)  # a class may say itself what is wrong with its arguments

    def __init__(self, cls: type[EnvironmentClass] | tuple[str, Path | None]) -> None:
        if isinstance(cls, tuple):
            name, search = cls
            cls = load_class(name, search)
            missing = [method for method in ("reset", "step") if not callable(getattr(cls, method, None))]
            if missing:
                raise TaskError(
                    f"task.name: class {name} has no {' and no '.join(missing)}; see docs/tasks.md"
                )
        self._cls = cls
        self._open: dict[int, EnvironmentClass] = {}
        self.file = file_of(cls)

    def offers(self, method: str) -> bool:
        """Whether the class has one of the methods that it may leave out."""
        return callable(getattr(self._cls, method, None))

    def generate(self, seed: int, args: Mapping[str, Any]) -> Any:
        """A new item."""
        return cast(Any, self._cls).generate(random.Random(seed), args)

    def solution(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
        """The turns of a perfect model."""
        return list(cast(Any, self._cls).solution(item, args))

    def begin(
        self, number: int, item: Mapping[str, Any], args: Mapping[str, Any], ended: Sequence[int]
    ) -> None:
        """Makes dialogue `number`; those that have ended are forgotten."""
        for one in ended:
            close = getattr(self._open.pop(one, None), "close", None)
            if callable(close):
                close()
        self._open[number] = self._cls(item, args)

    def reset(self, number: int) -> Any:
        """What the class's `reset` returns."""
        return self._open[number].reset()

    def steps(self, turns: Sequence[tuple[int, str]]) -> list[StepResult | Failure]:
        """The answers to one turn each of several dialogues, or why there is none."""
        found: list[StepResult | Failure] = []
        for number, completion in turns:
            try:
                found.append(called(self, "step", (number, completion)))
            except (CallError, TaskError) as error:
                found.append(Failure(error))
        return found

    def step(self, number: int, completion: str) -> StepResult:
        """The answer to one turn, in plain values. CallError: it is none."""
        result: Any = self._open[number].step(completion)
        if not isinstance(result, StepResult):
            raise CallError(f"returned {result!r:.60}, allowed: a StepResult")
        if not isinstance(result.observation, str):
            raise CallError(
                f"returned a StepResult whose observation is {result.observation!r:.60}, allowed: text"
            )
        for field, value in (("reward", result.reward), ("delay_seconds", result.delay_seconds)):
            number = isinstance(value, int | float) and math.isfinite(value)
            if not number or (field != "reward" and value < 0):
                raise CallError(
                    f"returned a StepResult whose {field} is {value!r:.60}, allowed: a finite number"
                )
        delay = float(result.delay_seconds)
        return StepResult(str(result.observation), float(result.reward), bool(result.done), delay)


def as_number(value: Any, key: str = "") -> float:
    """A reward as a float. CallError: it is no finite number."""
    if isinstance(value, str | bytes) or value is None or not hasattr(value, "__float__"):
        kind = "None" if value is None else f"{value!r:.40} ({type(value).__name__})"
        raise CallError(f"returned {kind}{key}, allowed: a number, or a dict of numbers")
    try:
        found = float(value)
    # Of arrays and tensors of several elements.
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CallError(f"returned {type(value).__name__}{key}, which is no number ({error})") from None
    if not math.isfinite(found):
        raise CallError(f"returned {found}{key}, allowed: a finite number")
    return found
