"""One process for other people's code (`worker.py`), as it is started, asked, looked at and killed on its own machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Final

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_api.printable import printable
from rl_trainer.tasks.answers import MOST_BYTES
from rl_trainer.tasks.channel import Channel
from rl_trainer.tasks.withheld import for_user_code

START_SECONDS = 120.0
"""Deadline for the process to start."""

TRACE_SECONDS = 1.0
"""How long a process that hangs has to say where."""

END_SECONDS = 10.0
"""How long one that was killed has to be gone, and a message that is begun to be there."""

MOST_TRACE: Final = 2**20
"""Bytes of what it says of where it hangs."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rl_trainer.tasks.worker import serve; serve(*map(int, sys.argv[2:]))"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


class OwnProcess:
    """One process, from its start to its end. `path`: where it looks for modules."""

    def __init__(self, path: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        # Whose other end closes when this process ends, and what the other writes where it stands to.
        alive, self._alive = os.pipe()
        self._trace, trace = os.pipe()
        passed = (theirs.fileno(), alive, trace)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, json.dumps(list(path)), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                # Copied first: the child reads the system's own list, and Ray, which starts on another thread, changes that.
                env=for_user_code(os.environ.copy()),
                start_new_session=True,
            )
        except OSError as error:
            raise RLTrainError(f"no process can be started for rewards and environments: {error}") from None
        finally:
            theirs.close()
            os.close(alive)
            os.close(trace)
        self.end = weakref.finalize(self, _end, self._process, self.channel, self._alive, self._trace)
        try:
            self.channel.receive(MOST_BYTES, START_SECONDS)
            return
        except TimeoutError:
            why = f"has not started after {START_SECONDS:g} s"
        except (EOFError, OSError):
            why = f"did not start ({self.how_it_ended()})"
        self.end()
        raise DeadlineExceeded(
            f"the process for rewards and environments {why}; look for a node that is overloaded or out of memory"
        )

    def exchange(self, data: bytes, seconds: float) -> bytes | None:
        """The answer to one message, None when there is none in time.

        Raises:
            EOFError, OSError: it has ended.
            TooLongError: the answer is longer than allowed.
        """
        try:
            self.channel.send(data, seconds)
            return self.channel.receive(MOST_BYTES, seconds)
        except TimeoutError:
            return None

    def trace(self) -> str:
        """The lines at which it hangs, as `faulthandler` writes them; what it says of itself, so it may be anything."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        found, deadline = b"", time.monotonic() + TRACE_SECONDS
        while b'"<string>"' not in found and len(found) < MOST_TRACE:  # the outermost line, of `_PROGRAM`
            if not select.select([self._trace], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            part = os.read(self._trace, 1 << 16)
            if not part:
                break
            found += part
        return found.decode(errors="replace")

    def how_it_ended(self) -> str:
        """In words, of one that ends by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        return name + (", is there too little memory?" if name == "SIGKILL" else "")


def stands_at(trace: str, file: str | None) -> str | None:
    """The line in a trace at which a call hangs: the innermost of `file`, else the innermost of all."""
    lines: list[tuple[str, str]] = _FRAME.findall(trace)
    inside = [line for line in lines if line[0] == file] or lines
    return printable(":".join(inside[0]), 300) if inside else None


def _end(process: subprocess.Popen[bytes], channel: Channel, alive: int, trace: int) -> None:
    """Kills a process and all that it has started, and waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    channel.close()
    os.close(alive)
    os.close(trace)
