"""When a run ends: a pure function of what it has reached, and the request to stop that signals make."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from rl_api import StopSpec
from rl_api.errors import Interrupted, TrainingDiverged

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


class StopNow(KeyboardInterrupt):
    """Raised by a signal that ends the run at once."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped at once")
        self.exit_code = exit_code


class StopRequest:
    """Ctrl-C and SIGTERM.

    While a run starts, the first signal ends it (`StopNow`): there is nothing to keep yet. Once it is under way (`begin`),
    the first asks for a stop after the step at hand, and the second ends the run at once.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._announce: Callable[[str], None] | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None
        self._patient = False

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
        """Takes over SIGINT and SIGTERM, where that can be done: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            # Bound methods are equal, not identical, to one another. What is ignored (nohup) stays ignored.
            if handler != self._handle and handler is not signal.SIG_IGN:
                self._previous.setdefault(number, handler)
                signal.signal(number, self._handle)

    def begin(self, announce: Callable[[str], None]) -> None:
        """The run is under way: from now on the first signal waits for a checkpoint. `announce` is told of it."""
        self.listen()
        self._patient = True
        self._announce = announce
        # A signal handler must not print: it may have interrupted a line that is being printed.
        threading.Thread(target=self._tell, name="stop request", daemon=True).start()

    def interrupted(self, text: str) -> Interrupted:
        """The error to end with: `text` for people, the signal's exit code for the shell."""
        error = Interrupted(text)
        error.exit_code = self.exit_code
        return error

    def release(self) -> None:
        """Gives the signals back to who had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._announce = None
        self._event.set()

    def __enter__(self) -> StopRequest:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _tell(self) -> None:
        self._event.wait()
        announce, number = self._announce, self.signal
        if announce is not None and number is not None:
            again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
            announce(f"{number.name}: stopping after this step, with a checkpoint ({again} stops at once)")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        at_once = self.requested or not self._patient
        self.signal = self.signal or signal.Signals(number)
        if at_once:
            raise StopNow(self.exit_code)
        self._event.set()
