"""Waiting for a change of state inside an asynchronous actor, with a deadline."""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes everyone who waits. Lighter than `asyncio.Condition` with `wait_for`, which makes a task per wait."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def notify(self) -> None:
        """Something has changed: all waits end, and look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(True)
        self._waiting.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        """True at the next `notify`, False after `seconds` (None: whoever waits ends with the actor)."""
        if seconds is not None and seconds <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(future)
        expiry = None if seconds is None else loop.call_later(seconds, _expire, future)
        try:
            return await future
        finally:
            self._waiting.discard(future)
            if expiry is not None:
                expiry.cancel()


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
