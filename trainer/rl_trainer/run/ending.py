"""Whether the end of an attempt is the end of its run, as far as its driver can know."""

from __future__ import annotations

import threading
import time
from typing import Final

from rl_api.errors import FINAL_EXIT_CODES, Interrupted, RLTrainError, RunFolderBusy

STOP_SECONDS: Final = 300.0
"""Who asks for a checkpoint to stop the run then ends its pods within this time."""


class CheckpointRequests:
    """Checkpoints that the status server is asked for. Methods are for any thread."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._last: float | None = None  # when one was answered

    def ask(self) -> None:
        """One is wanted."""
        self._wanted.set()

    def take(self) -> bool:
        """Whether one is wanted; it is not any more."""
        wanted = self._wanted.is_set()
        self._wanted.clear()
        return wanted

    def answered(self) -> None:
        """The one that was wanted is written."""
        self._last = time.monotonic()

    @property
    def recent(self) -> bool:
        """Whether one is wanted, or was written a short while ago: a stop that follows is one on purpose."""
        if self._wanted.is_set():
            return True
        return self._last is not None and time.monotonic() - self._last < STOP_SECONDS


def is_over(error: BaseException | None, attempt: int | None, retries: int, asked: bool) -> bool:
    """Whether nobody begins another attempt at once.

    Args:
        error: what ended this one; None: it is done.
        attempt: its number, as the operator counts; None: there is no operator, and whoever wants another begins it.
        retries: `retry.limit`. How many attempts failed before only the operator knows, as not every one that ended has.
        asked: a checkpoint was asked for just before: runs are suspended, evicted and deleted that way.
    """
    if isinstance(error, RunFolderBusy):  # another attempt is there
        return False
    if error is None or attempt is None:
        return True
    if isinstance(error, Interrupted) or not isinstance(error, Exception):  # by a signal
        return asked
    return retries == 0 or (isinstance(error, RLTrainError) and error.exit_code in FINAL_EXIT_CODES)
