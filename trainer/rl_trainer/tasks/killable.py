"""Calls other people's code in a process of its own, which is killed when a call does not return in time.

A thread cannot be stopped: a call that hangs in one would burn a core for ever, and one that hangs in C would take the
interpreter with it. So the code lives in one warm process, started when it is first needed, without torch and without Ray
(a call there and back takes some 0.1 ms), and replaced when it was killed or has ended. It leads a process group: what the
code has started ends with it, and all of it ends with the process that asked, however that ends (`worker.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_trainer.tasks.functions import line_of, short_location

START_SECONDS = 120.0
"""Deadline for the process to start."""

LOAD_SECONDS = 600.0
"""Deadline for importing a module of the user's: it may load a model."""

# How long a process that hangs has to say where, and one that was killed to be gone.
_TRACE_SECONDS = 1.0
_END_SECONDS = 10.0
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rl_trainer.tasks.worker import serve; serve(*map(int, sys.argv[2:]))"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


class CallError(Exception):
    """The call has given no result. `text`: why, to be put after the name of what was called."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class TimedOutError(CallError):
    """It did not return in time, and its process was killed. `stands`: where it stood, in words."""

    def __init__(self, seconds: float, where: str | None) -> None:
        self.stands = f"stands at {short_location(where)}" if where else "stands still"
        super().__init__(f"has not returned after {seconds:g} s and {self.stands}")


class LocalTarget:
    """An object in this process, for code that is known to return."""

    epoch = 0

    def __init__(self, target: Any) -> None:
        self._target = target

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """See `RemoteTarget.call`."""
        return called(self._target, method, args)


class KillableProcess:
    """The process for all code of one task; see the module. Calls from several threads wait for each other."""

    def __init__(self) -> None:
        self.epoch = 0
        self._running: _Running | None = None
        self.lock = threading.RLock()
        self._numbers = itertools.count()

    def target(self, factory: Callable[..., Any], *args: Any) -> RemoteTarget:
        """The object that `factory(*args)` makes there, once it is needed; both must be picklable.

        Where it has a `file`, that is the source file whose line errors name.
        """
        return RemoteTarget(self, next(self._numbers), factory, args)

    def ask(self, seconds: float, message: tuple[Any, ...], file: str | None = None) -> Any:
        """The answer to one message of `worker.py`; see `RemoteTarget.call` for errors."""
        with self.lock:
            try:
                data = pickle.dumps(message)
            except Exception as error:  # whatever an object of the user's raises
                raise CallError(f"cannot be given its arguments: {type(error).__name__}: {error}") from None
            running = self._running = self._running or _Running()
            try:
                answer = running.exchange(data, seconds)
            except (EOFError, OSError):
                how = running.how_it_ended()
                self._end()
                raise CallError(f"has ended its process ({how})") from None
            if answer is None:
                where = running.where(file)
                self._end()
                raise TimedOutError(seconds, where)
        try:
            value = pickle.loads(answer)
        except Exception as error:
            raise CallError(f"returned what cannot be read here: {type(error).__name__}: {error}") from None
        if isinstance(value, Failure):
            raise value.error
        return value

    def _end(self) -> None:
        assert self._running is not None
        self._running.end()
        self._running = None
        self.epoch += 1


class RemoteTarget:
    """An object in a `KillableProcess`; where that was replaced, it is made anew."""

    def __init__(
        self, process: KillableProcess, number: int, factory: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        self._process, self._number, self._factory, self._args = process, number, factory, args
        self._made: int | None = None
        self._file: str | None = None

    @property
    def epoch(self) -> int:
        """Grows when the object was lost and its state with it."""
        return self._process.epoch

    def make(self) -> None:
        """Makes the object if it is not there. Raises as `call` does."""
        with self._process.lock:
            if self._made != self._process.epoch:
                message = (self._number, self._factory, self._args)
                self._file = self._process.ask(LOAD_SECONDS, message)
                self._made = self._process.epoch

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """What the method returns for `args`; the time that making the object takes does not count.

        Raises:
            TimedOutError: it did not return within `seconds`.
            CallError: it raised, or its process has ended.
            RLTrainError: what the object itself says.
        """
        with self._process.lock:
            self.make()
            return self._process.ask(seconds, (self._number, method, args), self._file)


Target = LocalTarget | RemoteTarget
"""An object whose methods may hang."""


class Failure:
    """The answer to a call that has failed."""

    def __init__(self, error: CallError | RLTrainError) -> None:
        self.error = error


def called(target: Any, method: str, args: tuple[Any, ...]) -> Any:
    """`target.method(*args)`.

    Raises:
        CallError: it raised something else than these; the text names the line.
        RLTrainError: what is of one of the types `target.passes`.
    """
    try:
        return getattr(target, method)(*args)
    except CallError:
        raise
    except BaseException as error:  # also SystemExit
        if isinstance(error, getattr(target, "passes", ())):
            raise
        raise raised(error, getattr(target, "file", None)) from error


def raised(error: BaseException, file: str | None) -> CallError:
    """The sentence about what other people's code has raised, with its line (`line_of`)."""
    return CallError(f"raised {type(error).__name__}: {error} ({line_of(error, file)})")


class _Running:
    """One process, from its start to its end."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        # Whose other end closes when this process ends, and what the other writes where it stands to.
        alive, self._alive = os.pipe()
        self._trace, trace = os.pipe()
        passed = (theirs.fileno(), alive, trace)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, json.dumps(sys.path), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                # Copied first: the child reads the system's own list, and Ray, which starts on another thread, changes that.
                env=os.environ.copy(),
                start_new_session=True,
            )
        except OSError as error:
            raise RLTrainError(f"no process can be started for rewards and environments: {error}") from None
        finally:
            theirs.close()
            os.close(alive)
            os.close(trace)
        self.end = weakref.finalize(self, _end, self._process, self._connection, self._alive, self._trace)
        try:
            if self._connection.poll(START_SECONDS):
                self._connection.recv_bytes()
                return
            why = f"has not started after {START_SECONDS:g} s"
        except (EOFError, OSError):
            why = f"did not start ({self.how_it_ended()})"
        self.end()
        raise DeadlineExceeded(
            f"the process for rewards and environments {why}; look for a node that is overloaded or out of memory"
        )

    def exchange(self, data: bytes, seconds: float) -> bytes | None:
        """The answer to one message, None when there is none in time; EOFError or OSError when it has ended."""
        self._connection.send_bytes(data)
        return self._connection.recv_bytes() if self._connection.poll(seconds) else None

    def where(self, file: str | None) -> str | None:
        """The line at which it hangs: the innermost of `file`, else the innermost of all."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        text, deadline = "", time.monotonic() + _TRACE_SECONDS
        while '"<string>"' not in text:  # the outermost line, of `_PROGRAM`
            if not select.select([self._trace], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            part = os.read(self._trace, 1 << 16)
            if not part:
                break
            text += part.decode(errors="replace")
        lines: list[tuple[str, str]] = _FRAME.findall(text)
        inside = [line for line in lines if line[0] == file] or lines
        return ":".join(inside[0]) if inside else None

    def how_it_ended(self) -> str:
        """In words, of one that ends by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        return name + (", is there too little memory?" if name == "SIGKILL" else "")


def _end(process: subprocess.Popen[bytes], connection: Connection, alive: int, trace: int) -> None:
    """Kills a process and all that it has started, and waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    connection.close()
    os.close(alive)
    os.close(trace)
