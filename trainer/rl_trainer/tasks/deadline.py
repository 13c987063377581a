"""Calls other people's code with a deadline, in a thread that is left behind when the deadline passes."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[Callable[..., Any], tuple[Any, ...], "queue.SimpleQueue[tuple[bool, Any]]"]


class TimedOutError(Exception):
    """The call did not return in time. `where`: the line it stands at, as file:line."""

    def __init__(self, where: str | None) -> None:
        super().__init__(where)
        self.where = where


class DeadlineThread:
    """Runs one call at a time in a daemon thread that is kept for the next (some 30 microseconds a call).

    Python cannot stop a thread: a call that never returns keeps its thread, and the next call gets a new one.
    Code that never lets go of the interpreter (a C function that runs for ever) stops the whole process and
    no deadline helps.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def call(self, seconds: float, function: Callable[..., T], *args: Any, file: str | None = None) -> T:
        """`function(*args)`, or whatever it raises.

        Args:
            seconds: the deadline.
            function: what to call.
            *args: with what.
            file: source file whose line `TimedOutError.where` should name; None: the innermost line.

        Raises:
            TimedOutError: it did not return in time.
        """
        with self._lock:
            calls = self._worker()
            answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
            calls.put((function, args, answer))
            try:
                returned, value = answer.get(timeout=seconds)
            except queue.Empty:
                where = self._where(file)
                calls.put(None)  # should the call return after all, its thread ends
                self._calls = self._thread = None
                raise TimedOutError(where) from None
        if returned:
            return value  # type: ignore[no-any-return]
        raise value

    def _worker(self) -> queue.SimpleQueue[_Call | None]:
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=_serve, args=(self._calls,), name="rewards and environments", daemon=True
            )
            self._thread.start()
        return self._calls

    def _where(self, file: str | None) -> str | None:
        innermost = sys._current_frames().get(self._thread.ident or 0) if self._thread else None
        frame = innermost
        while file is not None and frame is not None and frame.f_code.co_filename != file:
            frame = frame.f_back
        frame = frame or innermost
        return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _serve(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        function, args, answer = call
        try:
            answer.put((True, function(*args)))
        except BaseException as error:  # also SystemExit: handed to the caller, who says where it comes from
            answer.put((False, error))
        del call, function, args, answer
