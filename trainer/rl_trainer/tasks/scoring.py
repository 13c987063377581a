"""Completions that a model in a worker elsewhere scores: each is handed in, and its value comes as a future. No Ray here.

All wait in one queue. Each worker has a thread here that takes a share of them, once the worker is there, and has it scored
in one call: none waits for a worker that is lost while others live. What a worker was scoring as it was lost is scored again
one by one, so that what ends a worker is the end of its own group alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from rl_api.errors import ActorDied, DeadlineExceeded, RewardError
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.types import Message, Prompt, Score

TRIES: Final = 3
"""A completion whose worker was so often replaced while it was scored is given up: it may be what ends it."""

MOST_LOSSES: Final = 30
"""The same, scored or still waiting there: workers may end for another reason, again and again."""

AGAIN_SECONDS: Final = 10.0
"""Between two looks for a worker that is not to be had."""


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

    def wait_ready(self) -> None:
        """Returns when it can be asked, at once where it was never lost. Any error: it is not to be had for now."""
        ...

    def score(self, completions: Sequence[Completion]) -> list[float | str]:
        """The value of each, or why it has none. LostError: the worker was replaced meanwhile."""
        ...


@dataclass
class _Asked:
    completion: Completion
    value: Future[float] = field(default_factory=Future)
    tries: int = 0  # that began and lost their worker
    losses: int = 0  # those, and others that waited at a worker as it was lost


class ScoreQueue:
    """The way to all workers.

    Args:
        name: of the model, for errors.
        scorers: each is called from a thread of its own.
        at_once: most completions of one call.
    """

    def __init__(self, name: str, scorers: Sequence[Scorer], at_once: int) -> None:
        self._name, self._scorers, self._at_once = name, scorers, at_once
        self._changed = threading.Condition()  # samplers' and simulators' threads ask
        self._waiting: deque[_Asked] = deque()
        self._idle = 0
        self._gone: dict[int, Exception] = {}
        self._begun = False

    def submit(self, completion: Completion) -> Future[float]:
        """The value of it.

        Its errors: RewardError, it has none, or its worker was replaced `TRIES` times; DeadlineExceeded or ActorDied, no
        worker is to be had.
        """
        asked = _Asked(completion)
        with self._changed:
            if not self._begun:
                self._begun = True
                for rank in range(len(self._scorers)):
                    name = f"scorer {rank} of {self._name}"
                    threading.Thread(target=self._run, args=(rank,), name=name, daemon=True).start()
            self._waiting.append(asked)
            self._changed.notify()
            refused = self._refused()
        _refuse(refused)
        return asked.value

    def _run(self, rank: int) -> None:
        scorer = self._scorers[rank]
        while True:
            try:
                scorer.wait_ready()
            except Exception as error:  # asked for again: its node may come back
                with self._changed:
                    self._gone[rank] = error
                    refused = self._refused()
                _refuse(refused)
                time.sleep(AGAIN_SECONDS)
                continue
            asked = self._take(rank)
            try:
                self._score(scorer, asked)
            except BaseException as error:  # for those who wait: the thread goes on
                _refuse([(one, error) for one in asked if not one.value.done()])

    def _refused(self) -> list[tuple[_Asked, Exception]]:
        """Who waits in vain, and why, where no worker is to be had."""
        if len(self._gone) < len(self._scorers):
            return []
        last = list(self._gone.values())[-1]
        kind = DeadlineExceeded if isinstance(last, DeadlineExceeded) else ActorDied
        error = kind(
            f"reward model {self._name}: none of its {len(self._gone)} workers is to be had ({last})"
        )
        refused: list[tuple[_Asked, Exception]] = [(one, error) for one in self._waiting]
        self._waiting.clear()
        return refused

    def _take(self, rank: int) -> list[_Asked]:
        """The share of one worker in what waits, once there is something: others that wait get theirs."""
        with self._changed:
            self._gone.pop(rank, None)
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting)
            share = min(self._at_once, -(-len(self._waiting) // self._idle))
            self._idle -= 1
            asked = [self._waiting.popleft()]
            while len(asked) < share and not (asked[0].tries or self._waiting[0].tries):
                asked.append(self._waiting.popleft())
            if self._waiting:
                self._changed.notify()
            return asked

    def _score(self, scorer: Scorer, asked: Sequence[_Asked]) -> None:
        try:
            found = scorer.score([one.completion for one in asked])
        except LostError as lost:
            again = []
            for one in asked:
                one.losses += 1
                one.tries += lost.begun
                if one.tries < TRIES and one.losses < MOST_LOSSES:
                    again.append(one)
                else:
                    self._fail(
                        one,
                        f"lost its worker {one.losses} times; look for a node that is overloaded or out of memory",
                    )
            with self._changed:
                self._waiting.extendleft(reversed(again))
                self._changed.notify()
            return
        for one, value in zip(asked, found, strict=True):
            if isinstance(value, str):
                self._fail(one, value)
            else:
                one.value.set_result(value)

    def _fail(self, asked: _Asked, why: str) -> None:
        where = f"prompt {asked.completion.index}"
        asked.value.set_exception(RewardError(f"reward model {self._name} {why}, at {where}"))


def _refuse(refused: Sequence[tuple[_Asked, BaseException]]) -> None:
    for one, error in refused:
        one.value.set_exception(error)


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
