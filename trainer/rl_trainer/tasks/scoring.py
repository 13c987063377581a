"""Completions that a model in a worker elsewhere scores: each is handed in, and its value comes as a future. No Ray here.

A worker has a lane here: a thread that takes what waits for it and has it scored in one call. What loses its worker is
scored again, at last one by one, so that what ends a worker is the end of its own group alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from rl_api.errors import RewardError
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.types import Message, Prompt, Score

TRIES: Final = 3
"""A completion whose worker was replaced so often is given up: it may be what ends it."""


@dataclass(frozen=True)
class Completion:
    """What is scored; see `Prompt`. `index`: of the prompt, for errors."""

    index: int
    text: str
    messages: tuple[Message, ...] | None
    answer: str
    completion: str

    @classmethod
    def of(cls, prompt: Prompt, completion: str) -> Completion:
        """The one of a prompt."""
        return cls(prompt.index, prompt.text, prompt.messages, prompt.answer, completion)


class Scorer(Protocol):
    """A worker with the model, as one sampler calls it, from one thread."""

    def score(self, completions: Sequence[Completion]) -> list[float | str]:
        """The value of each, or why it has none. LostError: the worker was replaced meanwhile."""
        ...


@dataclass(frozen=True)
class _Asked:
    completion: Completion
    value: Future[float] = field(default_factory=Future)


class ScoreLane:
    """The way to one worker.

    Args:
        name: of the model, for errors.
        scorer: called from this lane's thread alone.
        at_once: most completions of one call.
    """

    def __init__(self, name: str, scorer: Scorer, at_once: int) -> None:
        self._name, self._scorer, self._at_once = name, scorer, at_once
        self._waiting: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # samplers' and simulators' threads ask

    def submit(self, completion: Completion) -> Future[float]:
        """The value of it. RewardError: it has none, or its worker was replaced `TRIES` times."""
        asked = _Asked(completion)
        self._waiting.put(asked)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"lane of {self._name}", daemon=True)
                self._thread.start()
        return asked.value

    def _run(self) -> None:
        while True:
            asked = [self._waiting.get()]
            while len(asked) < self._at_once and not self._waiting.empty():
                asked.append(self._waiting.get())
            try:
                self._score(asked)
            except BaseException as error:  # for those who wait: the thread goes on
                for one in asked:
                    if not one.value.done():
                        one.value.set_exception(error)

    def _score(self, asked: Sequence[_Asked]) -> None:
        for _ in range(TRIES if len(asked) == 1 else TRIES - 1):
            try:
                found = self._scorer.score([one.completion for one in asked])
            except LostError:
                continue
            for one, value in zip(asked, found, strict=True):
                if isinstance(value, str):
                    self._fail(one, value)
                else:
                    one.value.set_result(value)
            return
        if len(asked) > 1:
            for one in asked:
                self._score([one])
            return
        self._fail(
            asked[0], f"lost its worker {TRIES} times; look for a node that is overloaded or out of memory"
        )

    def _fail(self, asked: _Asked, why: str) -> None:
        where = f"prompt {asked.completion.index}"
        asked.value.set_exception(RewardError(f"reward model {self._name} {why}, at {where}"))


def then(value: Future[float], score: Callable[[float], Score]) -> Future[Score]:
    """What `score` makes of the value, once that is there; its error, where it has one."""
    found: Future[Score] = Future()

    def settle(done: Future[float]) -> None:
        try:
            made = score(done.result())
        except BaseException as error:  # for who awaits it
            found.set_exception(error)
        else:
            found.set_result(made)

    value.add_done_callback(settle)
    return found
