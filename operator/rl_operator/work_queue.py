"""A queue of keys: each at most once in it, and never worked on by two at a time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Keys to work on, now or later."""

    def __init__(self, on_depth: Callable[[int], None] = lambda depth: None) -> None:
        self._waiting: OrderedDict[K, float] = OrderedDict()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._on_depth = on_depth
        self._event = asyncio.Event()

    def add(self, key: K) -> None:
        """Work on `key` as soon as possible; when it is being worked on, once more after that."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = time.monotonic()
            self._changed()

    def add_after(self, key: K, seconds: float) -> None:
        """Work on `key` in `seconds`, or earlier when that was asked for."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        known = self._timers.get(key)
        if known is not None and known[0] <= due:
            return
        if known is not None:
            known[1].cancel()
        self._timers[key] = (due, loop.call_at(due, self._fire, key))

    async def get(self) -> K:
        """The next key; `done` must follow."""
        while not self._waiting:
            self._event.clear()
            await self._event.wait()
        key, _ = self._waiting.popitem(last=False)
        self._active.add(key)
        self._changed()
        return key

    def done(self, key: K) -> None:
        """The work on `key` is done."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def forget(self, key: K) -> None:
        """No longer work on `key` later."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()

    @property
    def depth(self) -> int:
        """Keys that wait."""
        return len(self._waiting)

    @property
    def oldest(self) -> float:
        """Seconds that the first key has been waiting; 0 when none is."""
        first = next(iter(self._waiting.values()), None)
        return 0.0 if first is None else time.monotonic() - first

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _changed(self) -> None:
        self._on_depth(len(self._waiting))
        if self._waiting:
            self._event.set()
