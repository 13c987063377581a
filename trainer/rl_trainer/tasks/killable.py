"""Calls other people's code in a process of its own, which is killed when a call does not return in time.

A thread cannot be stopped: a call that hangs in one would burn a core for ever, and one that hangs in C would take the
interpreter with it. So the code lives in one warm process, started when it is first needed, without torch and without Ray
(a call there and back takes some 0.1 ms), and replaced when it was killed or has ended. It leads a process group: what the
code has started ends with it, and all of it ends with the process that asked, however that ends (`worker.py`).
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from rl_api.task import SOCKET_VARIABLE
from rl_trainer.tasks.answers import MOST_BYTES, CallError, Failure, decode
from rl_trainer.tasks.channel import TooLongError
from rl_trainer.tasks.functions import line_of, short_location
from rl_trainer.tasks.process import OwnProcess, stands_at
from rl_trainer.tasks.strict import ProcessElsewhere

LOAD_SECONDS = 600.0
"""Deadline for importing a module of the user's: it may load a model."""


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
        self._at = os.environ.get(SOCKET_VARIABLE)
        self.epoch = 0
        self._running: OwnProcess | ProcessElsewhere | None = None
        self.lock = threading.RLock()
        self._numbers = itertools.count()

    @property
    def elsewhere(self) -> bool:
        """Whether it is in another container, as another user."""
        return bool(self._at)

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
            running = self._running = self._running or self._started()
            try:
                answer = running.exchange(data, seconds)
                if answer is None:
                    where = stands_at(running.trace(), file)
                    self._end()
                    raise TimedOutError(seconds, where)
                value = decode(answer)
            except (EOFError, OSError):
                how = running.how_it_ended()
                self._end()
                raise CallError(f"has ended its process ({how})") from None
            except TooLongError:
                self._end()
                raise CallError(f"returned more than {MOST_BYTES // 2**20} MiB") from None
            except ValueError as error:
                self._end()  # nobody knows what comes next
                raise CallError(f"returned what cannot be read here: {error}") from None
        if isinstance(value, Failure):
            raise value.error
        return value

    def _started(self) -> OwnProcess | ProcessElsewhere:
        return ProcessElsewhere(self._at, sys.path) if self._at else OwnProcess(sys.path)

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
                file = self._process.ask(LOAD_SECONDS, message)
                self._file = file if isinstance(file, str) else None
                self._made = self._process.epoch

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """What the method returns for `args`, of the values in `answers.py`, whatever it should be; the time that making the
        object takes does not count.

        Raises:
            TimedOutError: it did not return within `seconds`.
            CallError: it raised, or its process has ended.
            RLTrainError: what the object itself says.
        """
        with self._process.lock:
            self.make()
            return self._process.ask(seconds, (self._number, method, args), self._file)


class Target(Protocol):
    """An object whose methods may hang: here, in a process beside this one, or in a worker elsewhere."""

    @property
    def epoch(self) -> int:
        """Grows when the object was lost and its state with it."""
        ...

    def call(self, seconds: float, method: str, *args: Any) -> Any:
        """See `RemoteTarget.call`."""
        ...


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
