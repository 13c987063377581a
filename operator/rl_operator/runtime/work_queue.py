"""A queue of keys: each at most once in it, and never worked on by two at a time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_IN_TURN: Final = 8
"""Of so many keys that are taken at least one is no urgent one: urgent work must not starve the rest."""


class WorkQueue(Generic[K]):
    """Keys to work on, now or later. Urgent ones are taken first."""

    def __init__(self, on_depth: Callable[[int], None] = lambda depth: None) -> None:
        self._urgent: OrderedDict[K, float] = OrderedDict()
        self._waiting: OrderedDict[K, float] = OrderedDict()
        self._active: set[K] = set()
        self._again: dict[K, bool] = {}
        self._timers: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._on_depth = on_depth
        self._event = asyncio.Event()
        self._taken = 0

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Work on `key` as soon as possible; when it is being worked on, once more after that."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()
        if key in self._active:
            self._again[key] = urgent or self._again.get(key, False)
            return
        if key in self._urgent or (key in self._waiting and not urgent):
            return
        since = self._waiting.pop(key, time.monotonic())
        (self._urgent if urgent else self._waiting)[key] = since
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
        while not self.depth:
            self._event.clear()
            await self._event.wait()
        self._taken += 1
        first = self._urgent
        if not first or (self._waiting and self._taken % _IN_TURN == 0):
            first = self._waiting
        key, _ = first.popitem(last=False)
        self._active.add(key)
        self._changed()
        return key

    def done(self, key: K) -> None:
        """The work on `key` is done."""
        self._active.discard(key)
        urgent = self._again.pop(key, None)
        if urgent is not None:
            self.add(key, urgent=urgent)

    def forget(self, key: K) -> None:
        """No longer work on `key` later."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()

    @property
    def depth(self) -> int:
        """Keys that wait."""
        return len(self._urgent) + len(self._waiting)

    @property
    def pressed(self) -> bool:
        """Whether something urgent waits."""
        return bool(self._urgent)

    @property
    def oldest(self) -> float:
        """Seconds that the first key has been waiting; 0 when none is."""
        since = [next(iter(keys.values())) for keys in (self._urgent, self._waiting) if keys]
        return time.monotonic() - min(since) if since else 0.0

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _changed(self) -> None:
        self._on_depth(self.depth)
        if self.depth:
            self._event.set()
