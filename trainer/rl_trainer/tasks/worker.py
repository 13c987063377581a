"""The process in which `killable.py` calls other people's code: makes objects, calls their methods, answers."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.tasks.killable import CallError, Failure, called, raised


def serve(requests: int, alive: int, trace: int) -> None:
    """Answers until there is nobody any more who asks; never returns.

    Args:
        requests: file descriptor of the connection.
        alive: file descriptor whose other end is open as long as the process that asks is there.
        trace: file descriptor to which SIGUSR1 writes the lines at which the call stands.
    """
    for number in (requests, alive, trace):
        os.set_inheritable(number, False)
    connection = Connection(requests)
    if sys.platform == "linux":
        # A call may hang in C, so that no thread here gets a turn: the kernel ends the group when `alive` closes.
        fcntl.fcntl(alive, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    objects: dict[int, Any] = {}
    own = os.getpid()
    try:
        connection.send_bytes(b"ready")
        while True:
            answer = _answer(objects, connection.recv_bytes())
            if os.getpid() != own:  # a child that the call has forked came back too: the call is not its own
                os._exit(0)
            connection.send_bytes(answer)
    except (EOFError, OSError):
        os._exit(0)


def _answer(objects: dict[int, Any], request: bytes) -> bytes:
    value: Any
    try:
        number, what, args = pickle.loads(request)
        if isinstance(what, str):
            value = called(objects[number], what, args)
        else:
            objects[number] = what(*args)
            value = getattr(objects[number], "file", None)
    except (CallError, RLTrainError) as error:
        value = Failure(error)
    except BaseException as error:
        value = Failure(raised(error, None))
    try:
        return pickle.dumps(value)
    except Exception as error:
        text = f"returned what cannot be sent to the trainer: {type(error).__name__}: {error}"
        return pickle.dumps(Failure(CallError(text)))
