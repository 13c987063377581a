"""`task.isolation: strict`: other people's code in another container of the pod, as another user.

There `code_server.py` listens on a socket that the two containers share, and for each connection starts a process
(`process.py`), hands messages on, and kills it when the connection closes. Here `ProcessElsewhere` stands for such a
process. What it hears is not trusted: see `answers.py`.

A message is a letter and its text. To there: first the path of modules as JSON, then `M` a message for the process, `W`
where does it stand? From there: `R` it has started, `A` an answer, `T` the lines at which it stands, `E` how it has ended,
`L` its answer is too long, `F` why it has not started.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import weakref
from collections.abc import Sequence
from typing import Final

from rl_api.errors import DeadlineExceeded
from rl_api.printable import printable
from rl_trainer.tasks.answers import MOST_BYTES
from rl_trainer.tasks.channel import Channel, TooLongError
from rl_trainer.tasks.process import END_SECONDS, MOST_TRACE, START_SECONDS, TRACE_SECONDS

CONNECT_SECONDS = 120.0
"""Deadline for the other container to listen, which starts when the own one does."""

_AGAIN_SECONDS = 0.1
_MOST_TOLD: Final = 2000


class ProcessElsewhere:
    """A process for other people's code in the other container; `at`: its socket, `path`: where it looks for modules.

    Raises DeadlineExceeded when nobody listens there, or it does not start.
    """

    def __init__(self, at: str, path: Sequence[str]) -> None:
        self._ended = "its container has ended; is there too little memory in task.resources?"
        self._channel = _started(at, json.dumps(list(path)).encode())
        self.end = weakref.finalize(self, self._channel.close)

    def exchange(self, data: bytes, seconds: float) -> bytes | None:
        """See `OwnProcess.exchange`. Raises ValueError too: what it hears is no answer."""
        try:
            self._channel.send(b"M" + data, seconds)
            said = self._channel.receive(MOST_BYTES + 1, seconds)
        except TimeoutError:
            return None
        kind, rest = said[:1], said[1:]
        if kind == b"A":
            return rest
        if kind == b"L":
            raise TooLongError
        if kind != b"E":
            raise ValueError(f"{said!r:.60}, which is no answer")
        self._ended = printable(rest.decode(errors="replace"), 200)
        raise EOFError

    def trace(self) -> str:
        """See `OwnProcess.trace`; nothing where nobody answers."""
        deadline = time.monotonic() + 2 * TRACE_SECONDS
        with contextlib.suppress(OSError, EOFError, TooLongError):
            self._channel.send(b"W", TRACE_SECONDS)
            while (said := self._channel.receive(MOST_BYTES + 1, deadline - time.monotonic()))[:1] == b"A":
                pass  # the answer that is too late
            return said[1 : MOST_TRACE + 1].decode(errors="replace")
        return ""

    def how_it_ended(self) -> str:
        """In words."""
        return self._ended


def _started(at: str, path: bytes) -> Channel:
    """The way to a process that has started."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        channel = Channel(socket.socket(socket.AF_UNIX))
        try:
            _connect(channel.socket, at, max(0.001, deadline - time.monotonic()))
            said = _said_first(channel, path)
            if said == b"R":
                return channel
            channel.close()
            why = printable(said[1:].decode(errors="replace"), _MOST_TOLD)
            raise DeadlineExceeded(f"the process for rewards and environments {why}")
        except (EOFError, OSError) as error:  # it does not listen yet, or is about to end
            channel.close()
            if time.monotonic() > deadline:
                why = getattr(error, "strerror", None) or "closed"
                raise DeadlineExceeded(
                    f"the process for rewards and environments cannot be started: nobody listened at {at} for "
                    f"{CONNECT_SECONDS:g} s ({why}); see in the pod why its container user-code does not run"
                ) from None
        time.sleep(_AGAIN_SECONDS)


def _connect(end: socket.socket, at: str, seconds: float) -> None:
    # What lies there is the other user's to choose: no link leads to another socket of this container's.
    place = os.open(at, os.O_PATH | os.O_NOFOLLOW)
    try:
        end.settimeout(seconds)
        end.connect(f"/proc/self/fd/{place}")
    finally:
        os.close(place)


def _said_first(channel: Channel, path: bytes) -> bytes:
    """`R`, or `F` and why not. EOFError, OSError: nothing."""
    try:
        channel.send(path, END_SECONDS)
        return channel.receive(_MOST_TOLD, START_SECONDS + END_SECONDS)
    except TimeoutError:
        return f"Fhas not started after {START_SECONDS:g} s".encode()
    except TooLongError:
        return b"Fdid not start (somebody else answers for it)"
