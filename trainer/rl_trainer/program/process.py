"""The program as a process group: its output line by line, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_api.errors import InvalidConfig, ProgramFailed

_PR_SET_PDEATHSIG = 1
# Lines of output that are kept for the sentence about a failure.
_LAST_LINES = 3
_LONGEST = 300
# A child of the program may hold its output open: the end is not waited for longer than this.
_DRAIN_SECONDS = 2.0


class Program:
    """A program under way. Its output, standard error included, goes to a log file and to whoever calls `lines`."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None, log: Path
    ) -> None:
        """Starts it.

        Args:
            command: program and arguments.
            environment: its environment, whole.
            folder: its working directory; None: this process's.
            log: file that its output is added to.

        Raises:
            InvalidConfig: it cannot be started.
        """
        self.command = tuple(command)
        self._log = log.open("ab")
        try:
            self._process = subprocess.Popen(
                self.command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a signal to it reaches what it has started, and Ctrl-C comes through us
                preexec_fn=_end_with_parent(),
            )
        except OSError as error:
            self._log.close()
            why = error.strerror or "it is no program"
            raise InvalidConfig(
                f"spec.trainer.command: found {self.command[0]!r}, which cannot be started ({why}), allowed: a program "
                "that is there where the run trains"
            ) from None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._kill_at: float | None = None
        self._closed = False
        self._reader = threading.Thread(target=self._read, name="program output", daemon=True)
        self._reader.start()

    def lines(self, wait: float) -> list[str]:
        """Output since the last call; waits for some, at most `wait` seconds."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._lines.get(timeout=wait))
            while True:
                found.append(self._lines.get_nowait())
        return found

    @property
    def running(self) -> bool:
        """Whether it has not ended yet. What is not stopped in time is killed."""
        if self._process.poll() is not None:
            return False
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._signal(signal.SIGKILL)
        return True

    def stop(self, grace: float) -> None:
        """Asks it to end (SIGTERM), and kills it when it is still there after `grace` seconds. Once is enough."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace
            self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends what is left of it, at once. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(_DRAIN_SECONDS)
        if not self._reader.is_alive():
            self._log.close()

    def drain(self) -> list[str]:
        """The last output of a program that has ended."""
        self._reader.join(_DRAIN_SECONDS)
        return self.lines(0.0)

    def check(self) -> None:
        """Looks at how it ended.

        Raises:
            ProgramFailed: not with exit code 0; the sentence has its last lines.
        """
        code = self._process.wait()
        if code == 0:
            return
        how = f"ended with exit code {code}"
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            how = f"was ended by {name}"
            how += " (is there too little memory?)" if name == "SIGKILL" else ""
        said = " / ".join(self._last)
        said = said if len(said) <= _LONGEST else f"...{said[-_LONGEST:]}"
        what = shlex.join(self.command).replace("\n", " ")
        what = what if len(what) <= 80 else f"{what[:77]}..."
        raise ProgramFailed(
            f"trainer.command: {what} {how}; {f'its last lines: {said}' if said else 'it said nothing'}"
        )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            with contextlib.suppress(OSError, ValueError):  # a full disk does not stop the program
                self._log.write(raw)
                self._log.flush()
            line = raw.decode(errors="replace").rstrip()
            if line:
                self._last.append(line.strip())
                self._lines.put(line)


def _end_with_parent() -> Callable[[], None] | None:
    """Has the program told to stop (SIGTERM) when this process is killed: with two of them, checkpoints would be mixed.

    Linux only: elsewhere it ends when it next writes to its output.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found here: between fork and exec little may be done
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
