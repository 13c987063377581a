"""The reward of a completion: the sum over the parts that `task.rewards` lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped]

from rl_api.errors import RewardError, TaskError
from rl_api.task import RewardRule
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.killable import KillableProcess, RemoteTarget, TimedOutError
from rl_trainer.tasks.rules import exact_match, fraction_right, number_matches, pattern_matches
from rl_trainer.tasks.types import Prompt
from rl_trainer.tasks.user_code import RewardFunction, as_number

TaskScorer = Callable[[Mapping[str, Any], str, float], float]
"""A task's own scorer: (item, completion, deadline in seconds) -> how right, as a rule from 0 to 1; or a CallError."""

NEEDS_ANSWER: dict[str, Callable[[str, str], float]] = {
    "exactMatch": exact_match,
    "number": number_matches,
    "fraction": fraction_right,
}
"""Rules that compare a completion with the answer."""

_TOLERANCE = 1e-9


class Rewards:
    """All parts of the reward. One object per thread of use; cheap to make.

    Args:
        rules: `task.rewards`.
        search: folder of the run file, where reward modules are looked for first.
        scorer: the task's own scorer, for rule task.
        process: runs functions under their deadlines.

    Raises:
        TaskError: a function or pattern cannot be used, or rule task has no scorer.
    """

    def __init__(
        self,
        rules: Sequence[RewardRule],
        search: Path | None = None,
        scorer: TaskScorer | None = None,
        process: KillableProcess | None = None,
    ) -> None:
        process = process or KillableProcess()
        names: dict[str, int] = {}
        self._parts: list[_Part] = []
        for number, rule in enumerate(rules):
            part = _make_part(rule, f"task.rewards[{number}]", search, scorer, process)
            names[part.name] = names.get(part.name, 0) + 1
            if names[part.name] > 1:
                part.name = f"{part.name}#{names[part.name]}"
            self._parts.append(part)
        own = scorer and _make_part(RewardRule(rule="task"), "", search, scorer, process)
        self._own = next((part for part in self._parts if part.rule.rule == "task"), own)

    @property
    def has_own_score(self) -> bool:
        """Whether the task has a scorer of its own."""
        return self._own is not None

    def own_score(self, prompt: Prompt, completion: str) -> float | None:
        """What the task's own scorer says, from 0 to 1; None without one. RewardError: as `evaluate`."""
        return self._own.rightness(prompt, completion) if self._own else None

    def evaluate(
        self, prompt: Prompt, completion: str, turns: Sequence[str] = (), own_score: float | None = None
    ) -> dict[str, float]:
        """The share of every part but those of rule model, weight applied, by name; the reward is the sum of all.

        Args:
            prompt: what was asked.
            completion: the answer; of a dialogue, the last turn.
            turns: all turns of a dialogue; functions find them in `prompt["turns"]`.
            own_score: the task's own score, where it is known; else rule task calls the scorer.

        Raises:
            RewardError: a part raised, hung past its deadline or gave no number.
        """
        shares: dict[str, float] = {}
        for part in self._parts:
            if part.rule.rule == "model":
                continue
            if part.rule.rule == "task" and own_score is not None:
                values = {part.name: part.graded(own_score)}
            else:
                values = part.values(prompt, completion, turns)
            for name, value in values.items():
                shares[name] = shares.get(name, 0.0) + part.rule.weight * value
        return shares

    @property
    def asks_model(self) -> bool:
        """Whether there is a part of rule model."""
        return any(part.rule.rule == "model" for part in self._parts)

    def of_model(self, value: float) -> dict[str, float]:
        """The shares of the parts of rule model, where that gives `value`."""
        found = (part for part in self._parts if part.rule.rule == "model")
        return {part.name: part.rule.weight * part.graded(value) for part in found}


class _Part:
    """One part: `values` gives its unweighted value, or several where a function returns a dict.

    `measure`: (prompt, completion) -> how right, from 0 to 1.
    """

    def __init__(self, rule: RewardRule, measure: Callable[[Prompt, str], float]) -> None:
        self.rule, self.name = rule, rule.function or rule.rule
        self._measure = measure

    def values(self, prompt: Prompt, completion: str, turns: Sequence[str]) -> dict[str, float]:
        return {self.name: self.graded(self.rightness(prompt, completion))}

    def graded(self, rightness: float) -> float:
        """`wrong` at 0, `right` at 1, in proportion between and beyond."""
        return self.rule.wrong + (self.rule.right - self.rule.wrong) * rightness

    def rightness(self, prompt: Prompt, completion: str) -> float:
        with self._named(prompt):
            return as_number(self._measure(prompt, completion))

    @contextmanager
    def _named(self, prompt: Prompt) -> Iterator[None]:
        """What goes wrong in the block, as a sentence that names part and prompt."""
        limit = f"{self.rule.timeout} (its timeout)"

        def failed(what: str) -> RewardError:
            return RewardError(
                f"reward {self.name} {what}, at prompt {prompt.index} ({_shortened(prompt.text)})"
            )

        try:
            yield
        except ValueError as error:
            raise failed(f"cannot be used: {error}") from None
        except TimeoutError:
            raise failed(
                f"is undecided after {limit}: pattern {self.rule.pattern!r} takes too long on the completion, so write "
                "one without nested repetition"
            ) from None
        except TimedOutError as error:
            raise failed(f"has not returned after {limit} and {error.stands}") from error
        except CallError as error:
            raise failed(error.text) from error


class _FunctionPart(_Part):
    def __init__(self, rule: RewardRule, function: RemoteTarget) -> None:
        self.rule, self.name = rule, rule.function or ""
        self._function = function

    def values(self, prompt: Prompt, completion: str, turns: Sequence[str]) -> dict[str, float]:
        described = {
            "index": prompt.index,
            "text": prompt.text,
            "messages": prompt.messages,
            "answer": prompt.answer,
            "item": prompt.item,
            "turns": list(turns) or [completion],
        }
        with self._named(prompt):
            seconds = self.rule.timeout.seconds
            value = self._function.call(seconds, "value", described, completion, prompt.answer)
            # Once more: the process in which it was looked at is the user's.
            found = value if isinstance(value, dict) else {self.name: value}
            return {str(name): as_number(part) for name, part in found.items()}


def _make_part(
    rule: RewardRule, path: str, search: Path | None, scorer: TaskScorer | None, process: KillableProcess
) -> _Part:
    seconds = rule.timeout.seconds
    match rule.rule:
        case "regex":
            try:
                pattern = regex.compile(rule.pattern or "")
            except regex.error as error:
                raise TaskError(
                    f"{path}.pattern: {rule.pattern!r} is no regular expression ({error})"
                ) from None
            return _Part(rule, lambda prompt, text: pattern_matches(pattern, text, prompt.answer, seconds))
        case "task":
            if scorer is None:
                raise TaskError(f"{path}.rule: found 'task', but this environment has no scorer of its own")
            return _Part(rule, lambda prompt, text: scorer(prompt.item, text, seconds))
        case "model":
            return _Part(rule, _elsewhere)
        case "function":
            function = process.target(RewardFunction, rule.function, search, path)
            try:
                function.make()
            except CallError as error:
                raise TaskError(f"{path}.function: {rule.function} {error.text} while it is loaded") from None
            return _FunctionPart(rule, function)
        case compared:
            return _Part(rule, lambda prompt, text: NEEDS_ANSWER[compared](text, prompt.answer))


def _elsewhere(prompt: Prompt, completion: str) -> float:
    """Stands for what workers measure."""
    raise CallError("is asked in workers alone")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def full(score: float) -> bool:
    """Whether a task's own score says that the answer is right: 1 or more."""
    return score >= 1.0 - _TOLERANCE
