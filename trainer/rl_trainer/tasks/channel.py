"""Messages over a socket, each whole or not at all, and under a deadline: whoever is at the other end may say anything."""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

_HEAD: Final = struct.Struct(">Q")
_PART: Final = 2**20


class TooLongError(ValueError):
    """A message is announced that is longer than allowed."""


class Channel:
    """One end. After an error there may be half a message on the way: nothing can be said or heard any more.

    Errors of both methods: TimeoutError: not done within `seconds` (None: no deadline); EOFError or OSError: the other end
    is closed.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def send(self, message: bytes, seconds: float | None = None) -> None:
        """Says it."""
        self.socket.settimeout(seconds)
        self.socket.sendall(_HEAD.pack(len(message)) + message)

    def receive(self, most: int, seconds: float | None = None) -> bytes:
        """The next message. Raises TooLongError where it has more than `most` bytes, before it is read."""
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
        if length > most:
            raise TooLongError(f"found {length} bytes, allowed: at most {most}")
        return self._exactly(length, deadline)

    def close(self) -> None:
        """The other end hears of it."""
        self.socket.close()

    def _exactly(self, length: int, deadline: float | None) -> bytes:
        found = bytearray()
        while len(found) < length:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            part = self.socket.recv(min(length - len(found), _PART))
            if not part:
                raise EOFError
            found += part
        return bytes(found)
