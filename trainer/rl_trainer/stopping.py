"""When a run ends: a pure function of what it has reached, and the request to stop that signals make."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from types import FrameType

from rl_api import StopSpec
from rl_api.errors import TrainingDiverged

MEAN_REWARD_STEPS = 10
SKIPPED_IN_A_ROW = 3


def stop_reason(
    stop: StopSpec,
    *,
    step: int,
    elapsed: float,
    rewards: Sequence[float],
    heldout: float | None,
    evaluated: bool,
) -> str | None:
    """Why the run ends after this step, or None.

    Args:
        stop: the run's `stop`.
        step: steps done.
        elapsed: seconds of training, over all attempts.
        rewards: mean reward of every step so far, the last ones suffice.
        heldout: newest held-out score, None before the first.
        evaluated: the run evaluates on held-out prompts, so that `targetReward` means their score.
    """
    if stop.target_reward is not None:
        if evaluated:
            if heldout is not None and heldout >= stop.target_reward:
                return "targetReward"
        elif len(rewards) >= MEAN_REWARD_STEPS:
            recent = list(rewards)[-MEAN_REWARD_STEPS:]
            if math.fsum(recent) / MEAN_REWARD_STEPS >= stop.target_reward:
                return "targetReward"
    if step >= stop.max_steps:
        return "maxSteps"
    if stop.max_duration is not None and elapsed >= stop.max_duration.seconds:
        return "maxDuration"
    return None


def check_divergence(skipped_in_a_row: int) -> None:
    """Ends a run whose loss stays no number.

    Raises:
        TrainingDiverged: `SKIPPED_IN_A_ROW` steps were skipped one after the other.
    """
    if skipped_in_a_row >= SKIPPED_IN_A_ROW:
        raise TrainingDiverged(
            f"loss or gradient was not a number in {skipped_in_a_row} steps in a row; lower algorithm.learningRate or "
            "algorithm.gradientClip, look for extreme rewards, and go on from the last checkpoint with --resume"
        )


class StopRequest:
    """Ctrl-C and SIGTERM: the first asks for a stop after the step under way, the second stops at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether the run shall stop after the step under way."""
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 plus the signal's number."""
        return 128 + (self.signal or signal.SIGINT)

    def request(self, number: signal.Signals | None = None) -> None:
        """Asks for a stop."""
        self.signal = number
        self._event.set()

    def listen(self) -> None:
        """Takes over SIGINT and SIGTERM; main thread only. Ray installs handlers of its own, so call it after Ray."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.setdefault(number, signal.getsignal(number))
            signal.signal(number, self._handle)

    def ignore_further(self) -> None:
        """Gives the signals back to who had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.request(signal.Signals(number))
