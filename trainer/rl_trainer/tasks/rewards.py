"""The reward of a completion: the sum over the parts that `task.rewards` lists."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped]

from rl_api.errors import RewardError, TaskError
from rl_api.task import RewardRule
from rl_trainer.tasks.deadline import DeadlineThread, TimedOutError
from rl_trainer.tasks.functions import file_of, line_of, load_function, short_location
from rl_trainer.tasks.rules import PatternRule, exact_match, fraction_right, number_matches
from rl_trainer.tasks.types import Prompt

TaskScorer = Callable[[Mapping[str, Any], str], float]
"""A task's own scorer: (item, completion) -> how right, as a rule from 0 to 1."""

NEEDS_ANSWER = frozenset({"exactMatch", "number", "fraction"})
"""Rules that compare with the answer."""

_TOLERANCE = 1e-9


class Rewards:
    """All parts of the reward. One object per thread of use; cheap to make.

    Args:
        rules: `task.rewards`.
        search: folder of the run file, where reward modules are looked for first.
        scorer: the task's own scorer, for rule task.
        thread: runs functions and scorers under their deadlines.

    Raises:
        TaskError: a function or pattern cannot be used, or rule task has no scorer.
    """

    def __init__(
        self,
        rules: Sequence[RewardRule],
        search: Path | None = None,
        scorer: TaskScorer | None = None,
        thread: DeadlineThread | None = None,
    ) -> None:
        self._thread = thread or DeadlineThread()
        names: dict[str, int] = {}
        self._parts: list[_Part] = []
        for number, rule in enumerate(rules):
            part = _make_part(rule, f"task.rewards[{number}]", search, scorer, self._thread)
            names[part.name] = names.get(part.name, 0) + 1
            if names[part.name] > 1:
                part.name = f"{part.name}#{names[part.name]}"
            self._parts.append(part)

    def evaluate(
        self, prompt: Prompt, completion: str, turns: Sequence[str] = (), own_score: float | None = None
    ) -> dict[str, float]:
        """Every part's share of the reward, weight applied, by name; the reward is their sum.

        Args:
            prompt: what was asked.
            completion: the answer; of a dialogue, the last turn.
            turns: all turns of a dialogue; functions find them in `prompt["turns"]`.
            own_score: the score that the task's environment gave, where it has one; else rule task calls the
                scorer.

        Raises:
            RewardError: a part raised, hung past its deadline or gave no number.
        """
        shares: dict[str, float] = {}
        for part in self._parts:
            if part.rule.rule == "task" and own_score is not None:
                values = {part.name: part.graded(own_score)}
            else:
                values = part.values(prompt, completion, turns)
            for name, value in values.items():
                shares[name] = shares.get(name, 0.0) + part.rule.weight * value
        return shares


class _Part:
    """One part: `values` gives its unweighted value, or several where a function returns a dict."""

    def __init__(self, rule: RewardRule, name: str) -> None:
        self.rule, self.name = rule, name

    def values(self, prompt: Prompt, completion: str, turns: Sequence[str]) -> dict[str, float]:
        return {self.name: self.graded(self.rightness(prompt, completion))}

    def graded(self, rightness: float) -> float:
        """`wrong` at 0, `right` at 1, in proportion between and beyond."""
        return self.rule.wrong + (self.rule.right - self.rule.wrong) * rightness

    def rightness(self, prompt: Prompt, completion: str) -> float:
        raise NotImplementedError

    def failed(self, what: str, prompt: Prompt) -> RewardError:
        return RewardError(f"reward {self.name} {what}, at prompt {prompt.index} ({_shortened(prompt.text)})")

    def too_late(self, prompt: Prompt, where: str | None = None) -> RewardError:
        at = f" at {short_location(where)}" if where else ""
        deadline = self.rule.timeout
        return self.failed(
            f"has not returned after {deadline} (its timeout) and stands{at or ' still'}", prompt
        )


class _RulePart(_Part):
    def __init__(self, rule: RewardRule, compare: Callable[[str, str], float]) -> None:
        super().__init__(rule, rule.rule)
        self._compare = compare

    def rightness(self, prompt: Prompt, completion: str) -> float:
        try:
            return float(self._compare(completion, prompt.answer))
        except ValueError as error:
            raise self.failed(f"cannot be used: {error}", prompt) from None


class _PatternPart(_Part):
    def __init__(self, rule: RewardRule, pattern: PatternRule) -> None:
        super().__init__(rule, rule.rule)
        self._pattern = pattern

    def rightness(self, prompt: Prompt, completion: str) -> float:
        try:
            return float(self._pattern.matches(completion, prompt.answer, self.rule.timeout.seconds))
        except TimeoutError:
            raise self.failed(
                f"is undecided after {self.rule.timeout} (its timeout): pattern {self.rule.pattern!r} takes "
                "too long on the completion, so write one without nested repetition",
                prompt,
            ) from None


class _TaskPart(_Part):
    def __init__(self, rule: RewardRule, scorer: TaskScorer, thread: DeadlineThread) -> None:
        super().__init__(rule, rule.rule)
        self._scorer, self._thread = scorer, thread

    def rightness(self, prompt: Prompt, completion: str) -> float:
        try:
            score = self._thread.call(self.rule.timeout.seconds, self._scorer, prompt.item, completion)
        except TimedOutError as late:
            raise self.too_late(prompt, late.where) from None
        return _number(score, self, "", prompt)


class _FunctionPart(_Part):
    def __init__(self, rule: RewardRule, function: Callable[..., Any], thread: DeadlineThread) -> None:
        super().__init__(rule, rule.function or "")
        self._function, self._thread, self._file = function, thread, file_of(function)

    def values(self, prompt: Prompt, completion: str, turns: Sequence[str]) -> dict[str, float]:
        described = {
            "index": prompt.index,
            "text": prompt.text,
            "messages": prompt.messages,
            "answer": prompt.answer,
            "item": prompt.item,
            "turns": list(turns) or [completion],
        }
        try:
            value = self._thread.call(
                self.rule.timeout.seconds,
                self._function,
                described,
                completion,
                prompt.answer,
                file=self._file,
            )
        except TimedOutError as late:
            raise self.too_late(prompt, late.where) from None
        except BaseException as error:
            where = line_of(error, self._file)
            raise self.failed(f"raised {type(error).__name__}: {error} ({where})", prompt) from error
        if isinstance(value, Mapping):
            return {str(key): _number(part, self, f" for {key!r}", prompt) for key, part in value.items()}
        return {self.name: _number(value, self, "", prompt)}


def _make_part(
    rule: RewardRule, path: str, search: Path | None, scorer: TaskScorer | None, thread: DeadlineThread
) -> _Part:
    match rule.rule:
        case "exactMatch":
            return _RulePart(rule, exact_match)
        case "number":
            return _RulePart(rule, number_matches)
        case "fraction":
            return _RulePart(rule, fraction_right)
        case "regex":
            try:
                return _PatternPart(rule, PatternRule(rule.pattern or ""))
            except regex.error as error:
                raise TaskError(
                    f"{path}.pattern: {rule.pattern!r} is no regular expression ({error})"
                ) from None
        case "task":
            if scorer is None:
                raise TaskError(f"{path}.rule: found 'task', but this environment has no scorer of its own")
            return _TaskPart(rule, scorer, thread)
        case "function":
            function = load_function(rule.function or "", search, f"{path}.function")
            _check_signature(function, rule.function or "", path)
            return _FunctionPart(rule, function, thread)


def _check_signature(function: Callable[..., Any], name: str, path: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind({}, "", "")
    except TypeError:
        raise TaskError(
            f"{path}.function: {name} takes {signature}, "
            "allowed: three arguments (prompt, completion, answer)"
        ) from None


def _number(value: Any, part: _Part, key: str, prompt: Prompt) -> float:
    if isinstance(value, str | bytes) or value is None or not hasattr(value, "__float__"):
        kind = "None" if value is None else f"{value!r:.40} ({type(value).__name__})"
        raise part.failed(f"returned {kind}{key}, allowed: a number, or a dict of numbers", prompt)
    try:
        number = float(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ) as error:  # arrays and tensors of several elements
        raise part.failed(
            f"returned {type(value).__name__}{key}, which is no number ({error})", prompt
        ) from None
    if not math.isfinite(number):
        raise part.failed(f"returned {number}{key}, allowed: a finite number", prompt)
    return number


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def full(score: float) -> bool:
    """Whether a task's own score says that the answer is right: 1 or more."""
    return score >= 1.0 - _TOLERANCE
