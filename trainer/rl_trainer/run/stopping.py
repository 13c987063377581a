"""The request to stop that signals make."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from rl_api.errors import Interrupted
from rl_trainer.storage.files import Closes


class StopNow(KeyboardInterrupt):
    """Raised by a signal that ends the run at once."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped at once")
        self.exit_code = exit_code


class StopRequest(Closes):
    """Ctrl-C and SIGTERM.

    While a run starts, the first signal ends it (`StopNow`): there is nothing to keep yet. Once it is under way (`begin`),
    the first asks for a stop after the step at hand, and the second ends the run at once.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._announce: Callable[[str], None] | None = None  # set once the run is under way
        self._previous: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None

    @property
    def requested(self) -> bool:
        """Whether the run shall stop after the step under way."""
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 plus the signal's number."""
        return 128 + (self.signal or signal.SIGINT)

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
        begun, self._announce = self._announce is not None, announce
        if begun:  # the run goes on with another placement
            return
        # A signal handler must not print: it may have interrupted a line that is being printed.
        threading.Thread(target=self._tell, args=(announce,), name="stop request", daemon=True).start()

    def interrupted(self, text: str) -> Interrupted:
        """The error to end with: `text` for people, the signal's exit code for the shell."""
        error = Interrupted(text)
        error.exit_code = self.exit_code
        return error

    def close(self) -> None:
        """Gives the signals back to who had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._event.set()

    def __enter__(self) -> Self:
        self.listen()
        return self

    def _tell(self, announce: Callable[[str], None]) -> None:
        self._event.wait()
        if self.signal is not None:
            again = "Ctrl-C again" if self.signal == signal.SIGINT else "a second signal"
            announce(
                f"{self.signal.name}: stopping after this step, with a checkpoint ({again} stops at once)"
            )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        at_once = self.requested or self._announce is None
        self.signal = self.signal or signal.Signals(number)
        if at_once:
            raise StopNow(self.exit_code)
        self._event.set()
