"""One dialogue as the trainer drives it: counts turns, guards the class, adds latency, scores the end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rl_api.errors import RewardError, TaskError
from rl_trainer.tasks.deadline import DeadlineThread, TimedOutError
from rl_trainer.tasks.environments.base import EnvironmentClass, Generates
from rl_trainer.tasks.functions import file_of, line_of, short_location
from rl_trainer.tasks.prompts import check_messages
from rl_trainer.tasks.split import derive_seed
from rl_trainer.tasks.types import Message, Prompt, Score, StepResult

STEP_SECONDS = 60.0
"""Deadline of one call of an environment."""

ScoreDialogue = Callable[[Prompt, str, Sequence[str], float], Score]
"""(prompt, answer, turns, the environment's own reward) -> score."""


class EnvironmentMaker:
    """Makes the user's environments and calls them under a deadline.

    Args:
        name: as the user wrote it, for errors.
        cls: the environment's class.
        args: `task.args`.
        thread: runs the calls; None for classes that are known to return, which saves handing each call over.
        seconds: deadline of one call.
    """

    def __init__(
        self,
        name: str,
        cls: type[EnvironmentClass],
        args: dict[str, Any],
        thread: DeadlineThread | None,
        seconds: float = STEP_SECONDS,
    ) -> None:
        self.name, self.cls, self.args = name, cls, args
        self._thread, self._seconds, self._file = thread, seconds, file_of(cls)

    def call(
        self, what: str, where: str, error: type[RewardError] | type[TaskError], function: Any, *args: Any
    ) -> Any:
        """`function(*args)` under the deadline.

        Args:
            what: the method's name, for errors.
            where: the prompt, in words.
            error: what to raise; a TaskError that the class raises itself is passed on.
            function: what to call.
            *args: with what.
        """
        try:
            if self._thread is None:
                return function(*args)
            return self._thread.call(self._seconds, function, *args, file=self._file)
        except TimedOutError as late:
            stands = f" and stands at {short_location(late.where)}" if late.where else ""
            raise error(
                f"environment {self.name}: {what} has not returned after {self._seconds:g} s{stands}, "
                f"at {where}"
            ) from None
        except TaskError:
            raise
        except BaseException as raised:
            line = line_of(raised, self._file)
            raise error(
                f"environment {self.name}: {what} raised {type(raised).__name__}: {raised} ({line}), "
                f"at {where}"
            ) from raised

    def opening(self, item: Mapping[str, Any], where: str) -> str | tuple[Message, ...]:
        """The question about an item, as the class's `reset` gives it.

        Raises:
            TaskError: it raised, hung or gave neither text nor messages.
        """
        environment = self.call("__init__", where, TaskError, self.cls, item, self.args)
        question = self.call("reset", where, TaskError, environment.reset)
        if isinstance(question, str) and question.strip():
            return question
        if isinstance(question, list | tuple) and question:
            return check_messages(question, f"environment {self.name}: reset")
        raise TaskError(
            f"environment {self.name}: reset returned {question!r:.60}, allowed: text or chat messages, "
            f"at {where}"
        )

    def generate(self, rng: random.Random, where: str) -> dict[str, Any]:
        """A new item of a class that makes its own.

        Raises:
            TaskError: it raised, hung or gave no dict.
        """
        item = self.call(
            "generate", where, TaskError, cast(type[Generates], self.cls).generate, rng, self.args
        )
        if not isinstance(item, dict):
            raise TaskError(
                f"environment {self.name}: generate returned {item!r:.60}, allowed: a dict, at {where}"
            )
        return item


class Episode:
    """One dialogue; see `rl_trainer.tasks.types.Environment`.

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
        self._inner: EnvironmentClass | None = None
        self._turns: list[str] = []
        self._reward = 0.0

    def reset(self) -> str | Sequence[Message]:
        """Begins, or begins again; what the model reads first, which is the prompt's content."""
        self._inner = self._maker.call(
            "__init__", self._where, RewardError, self._maker.cls, self._prompt.item, self._maker.args
        )
        self._maker.call("reset", self._where, RewardError, self._inner.reset)
        self._turns, self._reward = [], 0.0
        return self._prompt.content

    def step(self, completion: str) -> StepResult:
        """One turn of the model.

        Raises:
            RewardError: the environment or a reward raised, hung or gave no number.
        """
        if self._inner is None:
            self.reset()
        assert self._inner is not None
        turn = len(self._turns) + 1
        where = f"turn {turn} of {self._where}"
        result = self._maker.call("step", where, RewardError, self._inner.step, completion)
        self._check(result, where)
        self._turns.append(completion)
        self._reward += float(result.reward)
        if result.done:
            score = self._score(self._prompt, completion, self._turns, self._reward)
            return StepResult(result.observation, float(result.reward), True, 0.0, score)
        if turn >= self._max_turns:
            return StepResult(result.observation, float(result.reward), True, 0.0, self.final_score())
        delay = float(result.delay_seconds)
        if self._latency > 0:
            delay += random.Random(derive_seed(self._seed, turn)).expovariate(1 / self._latency)
        return StepResult(result.observation, float(result.reward), False, delay)

    def final_score(self) -> Score:
        """Of a dialogue that ends without an answer: an empty answer is scored, not the last turn."""
        return self._score(self._prompt, "", self._turns, self._reward)

    def _check(self, result: Any, where: str) -> None:
        name = self._maker.name
        if not isinstance(result, StepResult):
            raise RewardError(
                f"environment {name}: step returned {result!r:.60}, allowed: a StepResult, at {where}"
            )
        if not isinstance(result.observation, str):
            raise RewardError(
                f"environment {name}: observation is {result.observation!r:.60}, allowed: text, at {where}"
            )
        for field, value in (("reward", result.reward), ("delay_seconds", result.delay_seconds)):
            if (
                not isinstance(value, int | float)
                or not math.isfinite(value)
                or (field != "reward" and value < 0)
            ):
                raise RewardError(
                    f"environment {name}: {field} is {value!r:.60}, allowed: a finite number, at {where}"
                )
