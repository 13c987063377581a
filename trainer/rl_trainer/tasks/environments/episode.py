"""One dialogue as the trainer drives it: counts turns, guards the class, adds latency, scores the end."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_api.errors import RewardError, TaskError
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.killable import Target
from rl_trainer.tasks.prompts import check_messages
from rl_trainer.tasks.split import derive_seed
from rl_trainer.tasks.types import Message, Prompt, Score, StepResult

STEP_SECONDS = 60.0
"""Deadline of one call of an environment."""

ScoreDialogue = Callable[[Prompt, str, Sequence[str], float], Score]
"""(prompt, answer, turns, the environment's own reward) -> score."""


class EnvironmentMaker:
    """Calls the environment's class under a deadline, and says what went wrong.

    Args:
        name: as the user wrote it, for errors.
        target: the class and its dialogues (`user_code.Environments`), where they live.
        args: `task.args`.
    """

    def __init__(self, name: str, target: Target, args: dict[str, Any]) -> None:
        self.name, self.args = name, args
        self._target = target
        self._numbers = itertools.count()
        self._ended: list[int] = []

    @property
    def epoch(self) -> int:
        """Grows when all dialogues were lost."""
        return self._target.epoch

    def call(
        self, method: str, where: str, error: type[RewardError] | type[TaskError], *args: Any, what: str = ""
    ) -> Any:
        """What a method of `user_code.Environments` returns.

        Args:
            method: its name.
            where: the prompt, in words.
            error: what to raise; a TaskError that the class raises itself is passed on.
            *args: with what.
            what: the name of the class's own method that it calls, if that is another one.
        """
        try:
            return self._target.call(STEP_SECONDS, method, *args)
        except CallError as failed:
            raise error(f"environment {self.name}: {what or method} {failed.text}, at {where}") from failed

    def begin(
        self, owner: object, item: Mapping[str, Any], where: str, error: type[RewardError] | type[TaskError]
    ) -> tuple[int, Any]:
        """A new dialogue, forgotten when `owner` is: its number, and what the class's `reset` returns."""
        number, ended, self._ended[:] = next(self._numbers), self._ended.copy(), []
        self.call("begin", where, error, number, item, self.args, ended, what="__init__")
        weakref.finalize(owner, self._ended.append, number)
        return number, self.call("reset", where, error, number)

    def opening(self, item: Mapping[str, Any], where: str) -> str | tuple[Message, ...]:
        """The question about an item, as the class's `reset` gives it. TaskError: it failed, or gave no text or messages."""
        _, question = self.begin(lambda: None, item, where, TaskError)
        if isinstance(question, str) and question.strip():
            return question
        if isinstance(question, list | tuple) and question:
            return check_messages(question, f"environment {self.name}: reset")
        raise TaskError(
            f"environment {self.name}: reset returned {question!r:.60}, allowed: text or chat messages, "
            f"at {where}"
        )

    def generate(self, seed: int, where: str) -> dict[str, Any]:
        """A new item of a class that makes its own. TaskError: it raised, hung or gave no dict."""
        item = self.call("generate", where, TaskError, seed, self.args)
        if not isinstance(item, dict):
            raise TaskError(
                f"environment {self.name}: generate returned {item!r:.60}, allowed: a dict, at {where}"
            )
        return item

    def solution(self, item: Mapping[str, Any], where: str) -> list[str]:
        """The turns of a perfect model. TaskError: it raised, hung or gave no list of text."""
        turns = self.call("solution", where, TaskError, item, self.args)
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise TaskError(
                f"environment {self.name}: solution returned {turns!r:.60}, allowed: a list of text, at {where}"
            )
        return turns

    def step(self, number: int, completion: str, where: str) -> StepResult:
        """The answer to one turn of a dialogue. RewardError: it raised, hung or gave no StepResult."""
        result = self.call("step", where, RewardError, number, completion)
        if not isinstance(result, StepResult):
            raise RewardError(
                f"environment {self.name}: step returned {result!r:.60}, allowed: a StepResult, at {where}"
            )
        return result


class Episode:
    """One dialogue of several turns, as `Task.environment` hands it out.

    Args:
        maker: the class to talk to.
        prompt: what it is about.
        max_turns: after so many turns the dialogue is over, answered or not.
        latency: mean of the simulated tool latency in seconds, 0 for none.
        seed: of the latency.
        score: scores the finished dialogue.
    """

    def __init__(
        self,
        maker: EnvironmentMaker,
        prompt: Prompt,
        max_turns: int,
        latency: float,
        seed: int,
        score: ScoreDialogue,
    ) -> None:
        self._maker, self._prompt, self._score = maker, prompt, score
        self._max_turns, self._latency, self._seed = max_turns, latency, seed
        self._where = f"prompt {prompt.index}"
        self._number: int | None = None
        self._epoch = maker.epoch
        self._turns: list[str] = []
        self._results: list[StepResult] = []

    def reset(self) -> str | Sequence[Message]:
        """Begins, or begins again; what the model reads first, which is the prompt's content."""
        self._begin()
        self._turns, self._results = [], []
        return self._prompt.content

    def step(self, completion: str) -> StepResult:
        """Takes one turn of the model. RewardError: the environment or a reward raised, hung or gave no number."""
        if self._number is None:
            self.reset()
        elif self._epoch != self._maker.epoch:
            self._play_again()
        result = self._step(completion, len(self._turns) + 1)
        self._turns.append(completion)
        self._results.append(result)
        turn = len(self._turns)
        if result.done:
            return replace(result, delay_seconds=0.0, score=self._scored(completion))
        if turn >= self._max_turns:
            return replace(result, done=True, delay_seconds=0.0, score=self.final_score())
        if self._latency > 0:
            latency = random.Random(derive_seed(self._seed, turn)).expovariate(1 / self._latency)
            return replace(result, delay_seconds=result.delay_seconds + latency)
        return result

    def final_score(self) -> Score:
        """Of a dialogue that ends without an answer: an empty answer is scored, not the last turn."""
        return self._scored("")

    def _scored(self, answer: str) -> Score:
        return self._score(self._prompt, answer, self._turns, sum(result.reward for result in self._results))

    def _begin(self) -> None:
        self._number, _ = self._maker.begin(self, self._prompt.item, self._where, RewardError)
        self._epoch = self._maker.epoch

    def _step(self, completion: str, turn: int) -> StepResult:
        assert self._number is not None, "it has begun"
        return self._maker.step(self._number, completion, f"turn {turn} of {self._where}")

    def _play_again(self) -> None:
        """The process was replaced, since another dialogue hung in it: this one is led to where it was."""
        self._begin()
        for turn, (completion, result) in enumerate(zip(self._turns, self._results, strict=True), 1):
            if self._step(completion, turn) != result:
                raise RewardError(
                    f"environment {self._maker.name}: its process was replaced, and played again, step gave another "
                    f"answer, at turn {turn} of {self._where}; let it follow from item, args and the turns alone"
                )
