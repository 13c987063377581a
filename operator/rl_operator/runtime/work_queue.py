"""A queue of runs: each at most once in it, and never worked on by two at a time. Namespaces are served in turn."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rl_operator.model.names import Key
from rl_operator.model.turns import Turns

_IN_TURN: Final = 8
"""Of so many keys that are taken of a namespace at least one is no urgent one: urgent work must not starve the rest."""


class _Line:
    """The keys of one namespace, with the time since when they wait."""

    def __init__(self) -> None:
        self.urgent: OrderedDict[Key, float] = OrderedDict()
        self.waiting: OrderedDict[Key, float] = OrderedDict()
        self._taken = 0

    def __len__(self) -> int:
        return len(self.urgent) + len(self.waiting)

    def take(self) -> Key:
        self._taken += 1
        first = self.urgent
        if not first or (self.waiting and self._taken % _IN_TURN == 0):
            first = self.waiting
        return first.popitem(last=False)[0]


class WorkQueue:
    """Keys to work on, now or later.

    The next key is one of the namespace whose turn it is, an urgent one first: however many runs others have, and however
    urgent, a namespace waits for one key of each. `turns` says how many workers a namespace may hold together.
    """

    def __init__(self, on_depth: Callable[[int], None] = lambda depth: None) -> None:
        self.turns = Turns()
        self.depth = 0
        """Keys that wait."""
        self._lines: dict[str, _Line] = {}
        self._active: set[Key] = set()
        self._again: dict[Key, bool] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._on_depth = on_depth
        self._event = asyncio.Event()

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Work on `key` as soon as possible; when it is being worked on, once more after that."""
        self.forget(key)
        if key in self._active:
            self._again[key] = urgent or self._again.get(key, False)
            return
        line = self._lines.setdefault(key[0], _Line())
        if key in line.urgent or (key in line.waiting and not urgent):
            return
        since = line.waiting.pop(key, None)
        (line.urgent if urgent else line.waiting)[key] = time.monotonic() if since is None else since
        self.turns.wait(key[0])
        self._changed(since is None)

    def add_after(self, key: Key, seconds: float) -> None:
        """Work on `key` in `seconds`, or earlier when that was asked for."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if key not in self._timers or self._timers[key].when() > due:
            self.forget(key)
            self._timers[key] = loop.call_at(due, self.add, key)

    async def get(self) -> Key:
        """The next key; `done` must follow."""
        while (namespace := self.turns.take()) is None:
            self._event.clear()
            await self._event.wait()
        line = self._lines[namespace]
        key = line.take()
        if not line:
            del self._lines[namespace]
            self.turns.leave(namespace)
        self._active.add(key)
        self._changed(-1)
        return key

    def done(self, key: Key) -> None:
        """The work on `key` is done."""
        self._active.discard(key)
        self.turns.give_back(key[0])
        urgent = self._again.pop(key, None)
        if urgent is not None:
            self.add(key, urgent=urgent)
        self._event.set()

    def forget(self, key: Key) -> None:
        """No longer work on `key` later."""
        if key in self._timers:
            self._timers.pop(key).cancel()

    @property
    def pressed(self) -> bool:
        """Whether something urgent waits."""
        return any(line.urgent for line in self._lines.values())

    @property
    def oldest(self) -> float:
        """Seconds that the first key has been waiting; 0 when none is."""
        keys = [keys for line in self._lines.values() for keys in (line.urgent, line.waiting) if keys]
        since = [next(iter(one.values())) for one in keys]
        return time.monotonic() - min(since) if since else 0.0

    def _changed(self, by: int) -> None:
        self.depth += by
        self._on_depth(self.depth)
        self._event.set()
