"""What runs in the container for code of the user's: `python -m rl_trainer.tasks.code_server SOCKET`. See `strict.py`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

from rl_api.errors import RLTrainError
from rl_trainer.tasks.answers import MOST_BYTES
from rl_trainer.tasks.channel import Channel, TooLongError
from rl_trainer.tasks.process import END_SECONDS, OwnProcess

_MOST_REQUEST: Final = 2**32


def serve_forever(at: Path) -> None:
    """Listens at a path until SIGTERM, then until the last connection closes: the other container may still train."""
    at.unlink(missing_ok=True)  # of a container that was here before this one
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(at))
        at.chmod(0o666)  # the directory is shared with nobody else
        listening.listen()
        signal.signal(signal.SIGTERM, _leave)
        while True:
            end, _ = listening.accept()
            # Python ends when all of these have.
            threading.Thread(target=_serve, args=(Channel(end),)).start()


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _serve(asking: Channel) -> None:
    """One connection, from its first message to its end."""
    with contextlib.suppress(EOFError, OSError, ValueError), contextlib.closing(asking):
        path = json.loads(asking.receive(_MOST_REQUEST, END_SECONDS))
        try:
            # Here may be more, such as what a Secret of the task brings.
            process = OwnProcess([*path, *(place for place in sys.path if place not in path)])
        except RLTrainError as error:
            asking.send(b"F" + str(error).encode(), END_SECONDS)
            return
        try:
            asking.send(b"R", END_SECONDS)
            _hand_on(asking, process)
        finally:
            process.end()


def _hand_on(asking: Channel, process: OwnProcess) -> None:
    """Between two that may stop in the middle of a message: nobody is waited for longer than for a message to be there."""
    while True:
        ready = select.select([asking, process.channel], [], [])[0]
        if asking in ready:
            asked = asking.receive(_MOST_REQUEST, END_SECONDS)
            if asked == b"W":
                asking.send(b"T" + process.trace().encode(), END_SECONDS)
                continue
        try:
            if asking in ready:
                process.channel.send(asked[1:], END_SECONDS)
            if process.channel in ready:
                asking.send(b"A" + process.channel.receive(MOST_BYTES, END_SECONDS), END_SECONDS)
        except TooLongError:
            asking.send(b"L", END_SECONDS)
            return
        except (EOFError, OSError):
            asking.send(b"E" + process.how_it_ended().encode(), END_SECONDS)
            return


def _reap() -> None:
    """Goes on in a child, where this is the first process of a container: what nobody waits for any more is left to it."""
    if os.getpid() != 1:
        return
    child = os.fork()
    if not child:
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    _reap()
    serve_forever(Path(sys.argv[1]))
