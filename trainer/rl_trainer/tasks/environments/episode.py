"""One dialogue as the trainer drives it: counts turns, guards the class, adds latency, scores the end."""

from __future__ import annotations

import itertools
import random
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from rl_api.errors import RewardError, TaskError
from rl_trainer.tasks.answers import CallError, Failure, LostError
from rl_trainer.tasks.killable import Target
from rl_trainer.tasks.prompts import check_messages
from rl_trainer.tasks.split import derive_seed
from rl_trainer.tasks.types import Message, Prompt, Scored, StepResult

NOISE: Final = "noise"
"""Field of an item with the seed of what happens by chance within one dialogue: members of a group differ in it."""

STEP_SECONDS = 60.0
"""Deadline of one call of an environment."""

ScoreDialogue = Callable[[Prompt, str, Sequence[str], float], Scored]
"""(prompt, answer, turns, the environment's own reward) -> score."""


class EnvironmentMaker:
    """Calls the environment's class under a deadline, and says what went wrong.

    Args:
        name: as the user wrote it, for errors.
        target: the class and its dialogues (`user_code.Environments`), where they live.
        args: `task.args`.
        seconds: deadline of one call; None: `STEP_SECONDS`.
        first: number of its first dialogue: others may call the same target.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        args: dict[str, Any],
        seconds: float | None = None,
        first: int = 0,
    ) -> None:
        self.name, self.args = name, args
        self._target, self._seconds = target, STEP_SECONDS if seconds is None else seconds
        self._numbers = itertools.count(first)
        self._ended: deque[int] = deque()

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
            error: what to raise; a TaskError that the class raises itself is passed on, as is a LostError.
            *args: with what.
            what: the name of the class's own method that it calls, if that is another one.
        """
        try:
            return self._target.call(self._seconds, method, *args)
        except LostError:
            raise
        except CallError as failed:
            raise error(self.sentence(what or method, failed, where)) from failed

    def sentence(self, method: str, failed: CallError, where: str) -> str:
        """What is said of a call that has failed."""
        return f"environment {self.name}: {method} {failed.text}, at {where}"

    def begin(
        self, owner: object, item: Mapping[str, Any], where: str, error: type[RewardError] | type[TaskError]
    ) -> tuple[int, Any]:
        """A new dialogue, forgotten when `owner` is: its number, and what the class's `reset` returns."""
        # Dialogues end on any thread.
        number, ended = next(self._numbers), [self._ended.popleft() for _ in range(len(self._ended))]
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

    def steps(self, turns: Sequence[tuple[int, str]]) -> list[StepResult | Failure]:
        """The answers to one turn each of several dialogues. CallError: there are none, of any of them."""
        found = self._target.call(self._seconds, "steps", list(turns))
        if not isinstance(found, list) or len(found) != len(turns):
            raise CallError(
                f"returned {found!r:.60}, allowed: a StepResult for each of {len(turns)} dialogues"
            )
        return found


@dataclass(frozen=True)
class Setting:
    """Of one dialogue, whoever steps it.

    Attributes:
        prompt: what it is about.
        max_turns: after so many turns the dialogue is over, answered or not.
        score: scores the finished dialogue.
        latency: mean of the simulated tool latency in seconds, 0 for none.
        seed: of the latency.
        noise: seed of what happens by chance in it, for a class that wants one in its item; None: for none.
    """

    prompt: Prompt
    max_turns: int
    score: ScoreDialogue
    latency: float = 0.0
    seed: int = 0
    noise: int | None = None


class Episode:
    """One dialogue of several turns, as `Task.environment` hands it out. `maker`: the class to talk to."""

    def __init__(self, maker: EnvironmentMaker, setting: Setting) -> None:
        self._prompt, noise = setting.prompt, setting.noise
        self._item = self._prompt.item if noise is None else {**self._prompt.item, NOISE: noise}
        self._maker, self._setting = maker, setting
        self.where = f"prompt {self._prompt.index}"
        self._number: int | None = None
        self._epoch = maker.epoch
        self._turns: list[str] = []
        self._results: list[StepResult] = []

    def reset(self) -> str | Sequence[Message]:
        """Begins, or begins again; what the model reads first, which is the prompt's content."""
        self._begin()
        self._turns, self._results = [], []
        return self._prompt.content

    def step(self, completion: str) -> StepResult | Future[StepResult]:
        """Takes one turn of the model. RewardError: the environment or a reward raised, hung or gave no number."""
        return self.take(completion)

    def take(self, completion: str) -> StepResult:
        """The same, at once."""
        return self.took(completion, self._step(self.stand(), completion, len(self._turns) + 1))

    def stand(self) -> int:
        """The dialogue's number, once it is where its turns have led it: it may have to begin, or be played again. Raises as
        `step` does, or LostError."""
        if self._number is None:
            self._begin()
        elif self._epoch != self._maker.epoch:
            self._play_again()
        assert self._number is not None
        return self._number

    def took(self, completion: str, result: StepResult) -> StepResult:
        """The answer to a turn, as `step` gives it."""
        self._turns.append(completion)
        self._results.append(result)
        turn = len(self._turns)
        if result.done:
            return replace(result, delay_seconds=0.0, score=self._scored(completion))
        if turn >= self._setting.max_turns:
            return replace(result, done=True, delay_seconds=0.0, score=self.final_score())
        if (mean := self._setting.latency) > 0:
            latency = random.Random(derive_seed(self._setting.seed, turn)).expovariate(1 / mean)
            return replace(result, delay_seconds=result.delay_seconds + latency)
        return result

    def final_score(self) -> Scored:
        """Of a dialogue that ends without an answer: an empty answer is scored, not the last turn."""
        return self._scored("")

    def _scored(self, answer: str) -> Scored:
        reward = sum(result.reward for result in self._results)
        return self._setting.score(self._prompt, answer, self._turns, reward)

    def _begin(self) -> None:
        self._number, _ = self._maker.begin(self, self._item, self.where, RewardError)
        self._epoch = self._maker.epoch

    def _step(self, number: int, completion: str, turn: int) -> StepResult:
        return self._maker.step(number, completion, f"turn {turn} of {self.where}")

    def _play_again(self) -> None:
        """The process was replaced, since another dialogue hung in it: this one is led to where it was."""
        self._begin()
        assert self._number is not None
        for turn, (completion, result) in enumerate(zip(self._turns, self._results, strict=True), 1):
            if self._step(self._number, completion, turn) != result:
                raise RewardError(
                    f"environment {self._maker.name}: its process was replaced, and played again, step gave another "
                    f"answer, at turn {turn} of {self.where}; let it follow from item, args and the turns alone"
                )
