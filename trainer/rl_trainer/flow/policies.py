"""Order and full policies: the one queue under the channel and under the buffer. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

from rl_api.errors import InvalidConfig, RLTrainError

Order = Literal["fifo", "priority"]
OnFull = Literal["block", "dropOldest", "reject"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class Entry(Generic[K, V]):
    """One thing in a store. `weight`: how much of the capacity it fills. `arrival`, `offset`: place in fifo
    order.

    `offset` orders the parts of something that was taken in one piece and came back in several.
    """

    key: K
    value: V
    priority: float
    weight: int
    arrival: int
    offset: int = 0


Choose = Callable[[Sequence[Entry[Any, Any]]], int]
"""Which of the entries of a store, in arrival order and at least one, is the next: its index."""


class OrderedStore(Generic[K, V]):
    """Keyed entries handed out by order policy: `fifo` by arrival, `priority` by highest first, then arrival, or by choice.

    `weight` is the sum of the entries' weights. Operations are O(1) (`fifo`) or O(log n) (`priority`), except
    `give_back`, and `peek` by choice, which looks at all.
    """

    def __init__(self, order: Order | Choose = "fifo") -> None:
        self.order = order
        self.weight = 0
        # Not a dict, which is slow at its begin, where entries are removed.
        self._entries: OrderedDict[K, Entry[K, V]] = OrderedDict()
        self._heap: list[tuple[float, int, int, K]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[K, V]]:
        """Entries in arrival order."""
        return iter(self._entries.values())

    def push(self, key: K, value: V, *, priority: float = 0.0, weight: int = 1) -> Entry[K, V]:
        """Add an entry behind all others. The key must be new."""
        if key in self._entries:
            raise KeyError(f"{key!r} is in the store already")
        entry = Entry(key, value, priority, weight, self._arrivals)
        self._arrivals += 1
        self._insert(entry)
        return entry

    def replace(self, key: K, value: V, weight: int, offset: int = 0) -> None:
        """Change an entry's value, weight and offset; it keeps its place."""
        entry = self._entries[key]
        self.weight += weight - entry.weight
        entry.value, entry.weight, entry.offset = value, weight, offset
        if self.order == "priority":
            heapq.heappush(self._heap, (-entry.priority, entry.arrival, offset, key))

    def give_back(self, entries: Iterable[Entry[K, V]]) -> None:
        """Put entries that were taken out back in their place. O(n log n)."""
        for entry in entries:
            self._insert(entry)
        in_order = sorted(self._entries.values(), key=lambda entry: (entry.arrival, entry.offset))
        self._entries = OrderedDict((entry.key, entry) for entry in in_order)

    def peek(self) -> Entry[K, V] | None:
        """The next entry by order policy, or None."""
        if self.order == "fifo":
            return self.oldest()
        if callable(self.order):
            entries = list(self._entries.values())
            return entries[self.order(entries)] if entries else None
        while self._heap:
            _, arrival, offset, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and (entry.arrival, entry.offset) == (arrival, offset):
                return entry
            heapq.heappop(self._heap)  # removed or replaced meanwhile
        return None

    def oldest(self) -> Entry[K, V] | None:
        """The entry that arrived first, whatever the order policy, or None."""
        return next(iter(self._entries.values()), None)

    def remove(self, key: K) -> Entry[K, V]:
        """Take out one entry by key; KeyError where there is none."""
        entry = self._entries.pop(key)
        self.weight -= entry.weight
        return entry

    def _insert(self, entry: Entry[K, V]) -> None:
        self._entries[entry.key] = entry
        self.weight += entry.weight
        if self.order == "priority":
            heapq.heappush(self._heap, (-entry.priority, entry.arrival, entry.offset, entry.key))


def on_arrival(
    on_full: OnFull, filled: int, capacity: int, weight: int = 1
) -> Literal["accept", "wait", "drop", "reject"]:
    """What to do with an arrival of `weight` when `filled` of `capacity` is in use.

    `accept`; `wait` (policy block: the producer waits); `drop` (the oldest entry goes, then ask again);
    `reject` (the arrival goes). Something heavier than the whole capacity is accepted when nothing else is
    there: it could wait for ever.
    """
    if filled + weight <= capacity or filled == 0:
        return "accept"
    if on_full == "block":
        return "wait"
    return "drop" if on_full == "dropOldest" else "reject"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a user's policy knows of what waits in a channel: some items that a producer has sent together.

    `producer`: who sent them, the same text for each; `items`: how many they are; `priority`: what they were put with;
    `arrival`: counts what came, from 0 on.
    """

    producer: str
    items: int
    priority: float
    arrival: int


Policy = Callable[[Sequence[Waiting]], int]
"""A user's dequeue policy: which of what waits (at least one, in arrival order) is the next to leave, its index."""


def load_policy(order: str | Policy) -> Order | Policy:
    """The order that is meant: `fifo`, `priority`, a function, or the name of one as module:function.

    Raises InvalidConfig when it is none of these.
    """
    if callable(order):
        return order
    if order in ("fifo", "priority"):
        return "fifo" if order == "fifo" else "priority"
    module, _, name = order.partition(":")
    if not name:
        raise InvalidConfig(
            f"order of a channel: found {order}, allowed: fifo, priority, a function, or its name as module:function"
        )
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"order of a channel: {order} cannot be imported ({error})") from error
    if not callable(found):
        raise InvalidConfig(f"order of a channel: {order} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def chosen(policy: Policy, waiting: Sequence[Waiting]) -> int:
    """What the user's policy says. Raises RLTrainError when it raises, or says no index of `waiting`."""
    name = getattr(policy, "__qualname__", type(policy).__name__)
    try:
        index = policy(waiting)
    except Exception as error:
        raise RLTrainError(f"order of a channel: {name} raised {type(error).__name__}: {error}") from error
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(waiting):
        raise RLTrainError(
            f"order of a channel: {name} returned {index!r}, allowed: an index of what waits, 0 to {len(waiting) - 1}"
        )
    return index
