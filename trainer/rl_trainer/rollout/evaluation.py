"""Held-out prompts: what a sampler is asked for."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import cast

from rl_api.errors import DeadlineExceeded
from rl_trainer.rollout.engines.base import SamplingParams
from rl_trainer.tasks import Answer, Prompt, Score
from rl_trainer.weights.transports.publication import Publication


@dataclass
class Evaluation:
    """Prompts for one sampler, handed from the thread that was asked to the one that owns the engine."""

    prompts: list[Prompt]
    published: Publication
    params: SamplingParams
    answers: dict[int, Answer] = field(default_factory=dict)
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def settle(self, place: int, text: str, score: Score, error: str | None) -> bool:
        """The prompt at `place` is done with; returns whether all are."""
        prompt = self.prompts[place]
        self.answers[place] = Answer(
            prompt.index, prompt.text, prompt.answer, text, score.reward, score.exact, error
        )
        if len(self.answers) == len(self.prompts):
            self.done.set()
        return self.done.is_set()

    def fail(self, error: Exception) -> None:
        """It ends with `error`."""
        self.error = error
        self.done.set()

    def result(self, sampler: str, timeout: float) -> list[Answer]:
        """The answers, in order, once all are there.

        Raises:
            DeadlineExceeded: they are not after `timeout` seconds.
            Exception: what it failed with.
        """
        if not self.done.wait(timeout):
            raise DeadlineExceeded(
                f"{sampler}: {len(self.answers)} of {len(self.prompts)} held-out prompts answered after "
                f"{timeout:.0f} s; lower task.evaluation.samples or task.evaluation.maxNewTokens"
            )
        if self.error is not None:
            raise self.error
        return [self.answers[place] for place in range(len(self.prompts))]


class Evaluations:
    """Those that one sampler is asked for, one after the other. Any thread may `ask`; the rest is for that of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Evaluation] = deque()
        self._current: Evaluation | None = None

    def __bool__(self) -> bool:
        """Whether one is under way, or waits."""
        return bool(self._waiting) or self._current is not None

    @property
    def waits(self) -> bool:
        """Whether one waits to be begun."""
        return bool(self._waiting)

    @property
    def under_way(self) -> bool:
        """Whether one has begun that is not done with: it is answered with one version of the weights."""
        return self._current is not None

    @property
    def next(self) -> Evaluation | None:
        """The one that may begin now."""
        return self._waiting[0] if self._waiting and self._current is None else None

    def ask(self, evaluation: Evaluation) -> None:
        """One more."""
        self._waiting.append(evaluation)

    def begin(self) -> list[tuple[tuple[Evaluation, int], Prompt]]:
        """`next` is under way from now on; its prompts, each with the key by which to `settle` it."""
        self._current = current = self._waiting.popleft()
        return [((current, place), prompt) for place, prompt in enumerate(current.prompts)]

    def settle(self, key: object, text: str, score: Score, error: str | None = None) -> None:
        """The prompt with this key is done with."""
        evaluation, place = cast(tuple[Evaluation, int], key)
        if evaluation.settle(place, text, score, error):
            self._current = None

    def has(self, key: object) -> bool:
        """Whether the key is of a prompt of the one under way."""
        return isinstance(key, tuple) and key[0] is self._current

    def fail(self, error: Exception) -> None:
        """The one under way ends with `error`."""
        if (current := self._current) is not None:
            self._current = None
            current.fail(error)

    def fail_all(self, error: Exception) -> None:
        """They are for others now; `error` says why."""
        for evaluation in [*([] if self._current is None else [self._current]), *self._waiting]:
            evaluation.fail(error)
