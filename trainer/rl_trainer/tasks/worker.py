"""The process in which `killable.py` calls other people's code: makes objects, calls their methods, answers."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.tasks.answers import CallError, Failure, encode
from rl_trainer.tasks.channel import Channel
from rl_trainer.tasks.killable import called, raised

_MOST_REQUEST = 2**32


def serve(requests: int, alive: int, trace: int) -> None:
    """Answers until there is nobody any more who asks; never returns.

    Args:
        requests: file descriptor of the connection.
        alive: file descriptor whose other end is open as long as the process that asks is there.
        trace: file descriptor to which SIGUSR1 writes the lines at which the call stands.
    """
    for number in (requests, alive, trace):
        os.set_inheritable(number, False)
    _guard(alive, (requests, trace))
    channel = Channel(socket.socket(fileno=requests))
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    objects: dict[int, Any] = {}
    own = os.getpid()
    try:
        channel.send(b"ready")
        while True:
            answer = _answer(objects, channel.receive(_MOST_REQUEST))
            if os.getpid() != own:  # a child that the call has forked came back too: the call is not its own
                os._exit(0)
            channel.send(answer)
    except (EOFError, OSError):
        os._exit(0)


def _guard(alive: int, others: tuple[int, ...]) -> None:
    """Leaves a process behind that ends this one, and all that calls have started, when `alive` closes.

    One of its own: a call may hang in C, and Ray kills the process here, but not what that has started, before it ends the
    one that asks.
    """
    group = os.getpgrp()
    if os.fork():
        os.close(alive)
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for number in others:
        os.close(number)
    os.read(alive, 1)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
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
        return encode(value)
    except Exception as error:  # also what a type derived from these raises
        return encode(Failure(CallError(f"returned what cannot be sent to the trainer: {error}")))
