"""The channel's queue of chunks: capacity, order, leases. Pure; the Ray actor in `channel.py` only carries
it.

Producers offer chunks (several items each). Consumers lease items before they hand them out; a lease ends
when the consumer has delivered it, and comes back to its place in the queue when the consumer dies first. All
counts are of items: a chunk may be leased in parts, and a dropped item is the oldest item, not the oldest
chunk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rl_trainer.flow.metering import FillAlarm, RateMeter, WaitMeter
from rl_trainer.flow.policies import (
    Entry,
    OnFull,
    Order,
    OrderedStore,
    Policy,
    Waiting,
    chosen,
    on_arrival,
)


@dataclass
class Chunk:
    """What a producer sent: `payload` is bytes, or `[reference]` of a chunk in the object store."""

    payload: Any
    count: int
    producer: str
    adopted: bool  # the payload outlives its producer


@dataclass(frozen=True)
class Part:
    """Items `start` to `stop` of a chunk: what an entry of the queue, or a lease, stands for."""

    chunk: Chunk
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass
class Consumer:
    """A consumer's leases in order, and how many items it was leased and has delivered since it came."""

    leases: deque[Entry[int, Part]] = field(default_factory=deque)
    leased: int = 0
    delivered: int = 0


class QueueState:
    """All decisions of a channel. Methods take the time as `now` (seconds); none of them waits."""

    def __init__(
        self,
        capacity: int,
        order: Order | Policy = "fifo",
        on_full: OnFull = "block",
        alarm_seconds: float = 60.0,
    ):
        self.capacity, self.on_full = capacity, on_full
        self.store: OrderedStore[int, Part] = OrderedStore(
            partial(_choose, order) if callable(order) else order
        )
        self.consumers: dict[str, Consumer] = {}
        self.closed = False
        self.drops: Counter[str] = Counter()
        self.in_meter, self.out_meter = RateMeter(), RateMeter()
        self.producer_wait, self.consumer_wait = WaitMeter(), WaitMeter()
        self.alarm = FillAlarm(alarm_seconds)
        self._keys = 0

    @property
    def size(self) -> int:
        """Items in the queue (those under lease are not)."""
        return self.store.weight

    def _push(self, part: Part, priority: float) -> None:
        self._keys += 1
        self.store.push(self._keys, part, priority=priority, weight=len(part))

    def offer(self, chunk: Chunk, count: int, priority: float, now: float) -> int | None:
        """Take in a chunk of `count` items; how many of them stay, or None: no room (policy block)."""
        stop = count
        verdict = on_arrival(self.on_full, self.size, self.capacity, count)
        if verdict == "wait":
            return None
        if verdict == "drop":
            stop = min(count, self.capacity)
            self.drops["buffer_full"] += count - stop
            self._drop_oldest(self.size + stop - self.capacity)
        elif verdict == "reject":
            stop = max(0, self.capacity - self.size)
            self.drops["rejected"] += count - stop
        if stop:
            # Of a chunk that is larger than a dropping queue the newest items stay, otherwise the first ones.
            part = Part(chunk, count - stop, count) if verdict == "drop" else Part(chunk, 0, stop)
            self._push(part, priority)
            self.in_meter.add(now, stop)
        self.alarm.observe(now, self.size, self.capacity)
        return stop

    def _drop_oldest(self, count: int) -> None:
        self.drops["buffer_full"] += count
        while count > 0:
            entry = self.store.oldest()
            assert entry is not None
            gone = min(count, len(entry.value))
            count -= gone
            self._shorten(entry, gone)

    def _shorten(self, entry: Entry[int, Part], by: int) -> Part:
        """Take the first `by` items out of a queued entry; what is left keeps its place."""
        part = entry.value
        if by == len(part):
            self.store.remove(entry.key)
        else:
            rest = Part(part.chunk, part.start + by, part.stop)
            self.store.replace(entry.key, rest, len(rest), offset=rest.start)
        return Part(part.chunk, part.start, part.start + by)

    def lease(
        self, consumer: str, items: int, now: float, most_bytes: int | None = None
    ) -> list[tuple[int, Part]]:
        """Up to `items` items for a consumer, best first, as `(lease, part)`: its own until `delivered` or
        `reclaim`.

        Stops after `most_bytes` of payload that travels by value.
        """
        holder = self.consumers.setdefault(consumer, Consumer())
        parts: list[tuple[int, Part]] = []
        size = 0.0
        while items > 0 and (entry := self.store.peek()) is not None:
            if most_bytes is not None and size >= most_bytes:
                break
            part = self._shorten(entry, min(items, len(entry.value)))
            if not isinstance(part.chunk.payload, list):
                size += len(part.chunk.payload) * len(part) / part.chunk.count
            items -= len(part)
            holder.leased += len(part)
            self._keys += 1  # a part is an entry of its own should it come back
            lease = Entry(self._keys, part, entry.priority, len(part), entry.arrival, part.start)
            holder.leases.append(lease)
            parts.append((lease.key, part))
        if parts:
            self.alarm.observe(now, self.size, self.capacity)
        return parts

    def leased_part(self, consumer: str, lease: int) -> Part | None:
        """The part under this lease, or None when the lease is over."""
        holder = self.consumers.get(consumer, Consumer())
        return next((entry.value for entry in holder.leases if entry.key == lease), None)

    def delivered(self, consumer: str, total: int, now: float) -> None:
        """The consumer has handed out `total` items since it came: forget the leases that are through."""
        holder = self.consumers.get(consumer)
        if holder is None or total <= holder.delivered:
            return
        self.out_meter.add(now, total - holder.delivered)
        holder.delivered = total
        open_items = holder.leased - total
        remaining = sum(len(lease.value) for lease in holder.leases)
        while holder.leases and remaining - len(holder.leases[0].value) >= open_items:
            remaining -= len(holder.leases.popleft().value)

    def reclaim(self, consumer: str, total: int, now: float) -> int:
        """The consumer is gone after it delivered `total` items: the rest goes back. Returns how many."""
        self.delivered(consumer, total, now)
        holder = self.consumers.pop(consumer, None)
        if holder is None:
            return 0
        open_items = holder.leased - holder.delivered
        back: list[Entry[int, Part]] = []
        for lease in reversed(holder.leases):
            part = lease.value
            length = min(open_items, len(part))
            open_items -= length
            if length:
                rest = Part(part.chunk, part.stop - length, part.stop)
                back.append(Entry(lease.key, rest, lease.priority, length, lease.arrival, rest.start))
        self.store.give_back(back)
        return sum(len(entry.value) for entry in back)

    def holds(self, consumer: str) -> bool:
        """Whether the consumer has items that it has not delivered yet."""
        holder = self.consumers.get(consumer)
        return holder is not None and holder.leased > holder.delivered

    @property
    def finished(self) -> bool:
        """Closed, and no item is left: neither queued nor with a consumer that might still give it back."""
        return (
            self.closed and not self.store and all(c.leased == c.delivered for c in self.consumers.values())
        )

    def unadopted(self, producer: str) -> list[Chunk]:
        """The producer's chunks, queued or leased, that would be lost with it."""
        parts = [entry.value for entry in self.store]
        parts += [lease.value for consumer in self.consumers.values() for lease in consumer.leases]
        chunks = {id(part.chunk): part.chunk for part in parts}
        return [chunk for chunk in chunks.values() if chunk.producer == producer and not chunk.adopted]

    def metrics(self, now: float, name: str) -> dict[str, Any]:
        """JSON-able numbers; rates are items per second, waits seconds."""
        self.alarm.observe(now, self.size, self.capacity)
        return {
            "size": self.size,
            "capacity": self.capacity,
            "fill": self.size / self.capacity,
            "leased": sum(c.leased - c.delivered for c in self.consumers.values()),
            "put": self.in_meter.total,
            "delivered": self.out_meter.total,
            "in_rate": self.in_meter.rate(now),
            "out_rate": self.out_meter.rate(now),
            "producer_wait": self.producer_wait.as_dict(),
            "consumer_wait": self.consumer_wait.as_dict(),
            "drops": dict(self.drops),
            "alarms": self.alarm.sentences(now, f"channel {name}"),
        }


def _choose(policy: Policy, entries: Sequence[Entry[int, Part]]) -> int:
    waiting = [
        Waiting(entry.value.chunk.producer, len(entry.value), entry.priority, entry.arrival)
        for entry in entries
    ]
    return chosen(policy, waiting)
