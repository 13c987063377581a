"""Dialogues that are stepped by a worker elsewhere: a turn is handed in, and its answer comes as a future.

A worker has a lane here: a thread that takes all turns that wait for it and has them answered in one call, as a vector of
environments is stepped. A call that fails is made again turn by turn, so that what hangs is the end of its own group alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rl_api.errors import RewardError, RLTrainError
from rl_trainer.tasks.answers import CallError, Failure, LostError
from rl_trainer.tasks.environments.episode import EnvironmentMaker, Episode, Setting
from rl_trainer.tasks.types import Message, StepResult

MOST_AT_ONCE = 256
"""Turns of one call."""

TRIES = 3
"""A turn whose worker was replaced so often is given up: it may be what ends it."""


@dataclass(frozen=True)
class _Turn:
    episode: Episode
    completion: str
    answer: Future[StepResult] = field(default_factory=Future)


class Lane:
    """The way to one worker. `maker`: calls it; from this lane's thread alone."""

    def __init__(self, maker: EnvironmentMaker) -> None:
        self.maker = maker
        self._waiting: queue.SimpleQueue[_Turn] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, episode: Episode, completion: str) -> Future[StepResult]:
        """The answer to one turn, with what `Episode.take` gives or raises."""
        turn = _Turn(episode, completion)
        self._waiting.put(turn)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"lane of {self.maker.name}", daemon=True)
            self._thread.start()
        return turn.answer

    def _run(self) -> None:
        while True:
            turns = [self._waiting.get()]
            while len(turns) < MOST_AT_ONCE and not self._waiting.empty():
                turns.append(self._waiting.get())
            try:
                self._answer(turns)
            except BaseException as error:  # for those who wait: the thread goes on
                for turn in turns:
                    _fail(turn, error)

    def _answer(self, turns: Sequence[_Turn]) -> None:
        for _ in range(TRIES):
            try:
                ready = [(number, turn) for turn in turns if (number := _stand(turn)) is not None]
                found = (
                    self.maker.steps([(number, turn.completion) for number, turn in ready]) if ready else []
                )
            except LostError:
                continue
            except CallError as failed:
                if len(turns) > 1:
                    for turn in turns:
                        self._answer([turn])
                else:
                    _fail(turns[0], RewardError(self.maker.sentence("step", failed, turns[0].episode.where)))
                return
            for (_, turn), result in zip(ready, found, strict=True):
                self._settle(turn, result)
            return
        for turn in turns:
            _fail(
                turn,
                RewardError(
                    f"environment {self.maker.name}: its worker was replaced {TRIES} times during a step, at "
                    f"{turn.episode.where}; look for a node that is overloaded or out of memory"
                ),
            )

    def _settle(self, turn: _Turn, result: StepResult | Failure) -> None:
        if isinstance(result, StepResult):
            try:
                turn.answer.set_result(turn.episode.took(turn.completion, result))
            except RLTrainError as error:
                _fail(turn, error)
            return
        why = result.error if isinstance(result, Failure) else CallError(f"returned {result!r:.60}")
        if isinstance(why, CallError):
            why = RewardError(self.maker.sentence("step", why, turn.episode.where))
        _fail(turn, why)


class SimulatedEpisode(Episode):
    """A dialogue with the worker of a lane. It begins with its first turn: nobody waits for `reset`."""

    def __init__(self, lane: Lane, setting: Setting) -> None:
        super().__init__(lane.maker, setting)
        self._lane = lane

    def reset(self) -> str | Sequence[Message]:
        """See `Episode.reset`."""
        self._number, self._turns, self._results = None, [], []
        return self._prompt.content

    def step(self, completion: str) -> StepResult | Future[StepResult]:
        """See `Episode.step`."""
        return self._lane.submit(self, completion)


def _stand(turn: _Turn) -> int | None:
    """The number of its dialogue, where that is as it was; None: it has failed by now. Raises LostError."""
    if turn.answer.done():
        return None
    try:
        return turn.episode.stand()
    except RLTrainError as error:
        _fail(turn, error)
        return None


def _fail(turn: _Turn, error: BaseException) -> None:
    if not turn.answer.done():
        turn.answer.set_exception(error)
