"""Held-out prompts: what a sampler is asked for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

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
