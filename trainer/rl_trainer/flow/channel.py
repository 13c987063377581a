"""A queue between processes: put and get one by one at the price of batches. One Ray actor, and the handle to
it.

What it promises
----------------
- An item is delivered to one consumer, once. It counts as delivered when `get` returns it; what a consumer
  had only fetched ahead goes back to its place in the queue when the consumer dies, however it dies.
- What was put before a `flush` that returned outlives the producer. What was put later may be lost with it if
  it is killed; it is then counted (`lost_with_producer`), never delivered in part or twice.
- With order `fifo`, items of one producer arrive in the order they were put (at each consumer).
- Memory is bounded: `capacity` items in the queue, a window per producer (at most `capacity` items), and what
  a consumer fetches ahead (at most half the capacity).
- Items up to `sender.INLINE_BYTES` travel in the calls, several at a time. Larger ones, and larger groups of
  small ones, go through the object store without touching the actor; their big arrays arrive as read-only
  views.

Items are pickled when they are put, and arrays arrive read-only. Ray object references inside items are not supported.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_api.errors import RLTrainError
from rl_trainer.flow.adoption import adopt
from rl_trainer.flow.calls import answer
from rl_trainer.flow.changes import Changes
from rl_trainer.flow.chunks import cut, pack, unpack
from rl_trainer.flow.liveness import Probe, look_at
from rl_trainer.flow.policies import OnFull, Policy, load_policy
from rl_trainer.flow.queue_state import Chunk, Part, QueueState
from rl_trainer.flow.receiver import CALL_SECONDS, ChannelClosed, Receiver
from rl_trainer.flow.sender import Sender

__all__ = ["Channel", "ChannelActor", "ChannelClosed"]

REPLY_BYTES = 80_000  # of inline items per fetch: larger answers would go through the object store
WATCH_SECONDS = 0.5
REMOTE_WATCH_SECONDS = 5.0


class ChannelActor:
    """The actor: moves chunks it never looks into. Every method runs on one event loop."""

    def __init__(
        self, name: str, capacity: int, order: str | Policy, on_full: OnFull, alarm_seconds: float
    ) -> None:
        self._name = name
        self._state = QueueState(capacity, load_policy(order), on_full, alarm_seconds)
        self._turns: Counter[str] = Counter()  # the number of the chunk whose turn it is, by producer
        self._consumers: dict[str, tuple[str, str, Probe | None]] = {}  # id -> (path, node, local probe)
        self._lost: Counter[str] = Counter()
        self._changes = Changes()
        self._watcher: asyncio.Task[None] | None = None

    # -- producers -----------------------------------------------------------------------------------------

    async def push(self, message: Any) -> int:
        """Take in chunk `number` of a producer, waiting for room; returns how many of its `count` items stay.

        `message`: packed (producer, number, count, priority, payload). Ray may start the calls of one caller to an
        asynchronous actor in any order: the numbers put them right.
        """
        producer, number, count, priority, payload = unpack(message)
        started = time.monotonic()
        chunk = Chunk(payload, count, producer, adopted=not isinstance(payload, list))
        while True:
            if self._state.closed:
                raise RLTrainError(f"channel {self._name} is closed: nothing can be put any more")
            accepted = None
            if self._turns[producer] == number:
                accepted = self._state.offer(chunk, count, priority, time.monotonic())
            if accepted is not None:
                break
            await self._changes.wait()  # ends with room, or when the channel closes
        self._turns[producer] += 1
        self._state.producer_wait.add(time.monotonic() - started)
        self._changes.notify()
        # A consumer that was waiting is answered first: it waits, the producer does not.
        await asyncio.sleep(0)
        return accepted

    async def flush(self, producer: str) -> None:
        """Adopt what the producer has sent by reference and nobody has taken yet."""

        async def keep(chunk: Chunk) -> None:
            chunk.payload, chunk.adopted = [await adopt(chunk.payload[0])], True

        await asyncio.gather(*(keep(chunk) for chunk in self._state.unadopted(producer)))

    # -- consumers -----------------------------------------------------------------------------------------

    async def attach(self, consumer: str, path: str, node_id: str) -> None:
        """A consumer joins; its progress file is at `path` on its node."""
        here = node_id == ray.get_runtime_context().get_node_id()
        self._consumers[consumer] = (path, node_id, Probe(path) if here else None)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def pull(self, message: Any) -> Any:
        """Lease up to `items` items, waiting for the first. Answers the fields of `receiver.Fetched`, packed.

        `message`: packed (consumer, items, timeout, delivered, ahead). `ahead`: nobody waits for them yet, so it does
        not wait where another consumer could have the next item.
        """
        consumer, items, timeout, delivered, ahead = unpack(message)
        started = time.monotonic()
        self._state.delivered(consumer, delivered, started)
        while consumer in self._consumers:
            parts = self._state.lease(consumer, items, time.monotonic(), REPLY_BYTES)
            if parts:
                self._state.consumer_wait.add(time.monotonic() - started)
                self._changes.notify()  # there is room
                answers = [(lease, *_sent(part)) for lease, part in parts]
                references = any(isinstance(part.chunk.payload, list) for _, part in parts)
                return pack((answers, self._state.size, False, False), references=references)
            if ahead and len(self._consumers) > 1:
                break
            left = started + timeout - time.monotonic()
            if self._state.finished or (self._state.closed and self._state.holds(consumer)):
                break
            if not await self._changes.wait(left):
                break
        self._state.consumer_wait.add(time.monotonic() - started)
        drained = self._state.closed and not self._state.size
        return pack(([], 0, drained, self._state.finished), references=False)

    async def recover(self, consumer: str, lease: int) -> Any:
        """The adopted payload of a lease whose producer has died, or None: lost, and counted."""
        part = self._state.leased_part(consumer, lease)
        if part is None or not part.chunk.adopted:
            self._lost["lost_with_producer"] += 0 if part is None else len(part)
            return None
        return part.chunk.payload

    async def detach(self, consumer: str) -> None:
        """A consumer leaves: what it has not delivered goes back."""
        await self._look(consumer)

    async def _watch(self) -> None:
        remote_at = 0.0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            remote = time.monotonic() >= remote_at
            if remote:
                remote_at = time.monotonic() + REMOTE_WATCH_SECONDS
            for consumer, (_, _, probe) in list(self._consumers.items()):
                if probe is not None or remote:
                    await self._look(consumer)

    async def _look(self, consumer: str) -> None:
        """Read a consumer's progress; if it is dead, take its undelivered items back."""
        known = self._consumers.get(consumer)
        if known is None:
            return
        path, node_id, probe = known
        if probe is not None:
            alive, delivered = probe.look()
        else:
            place = NodeAffinitySchedulingStrategy(node_id, soft=False)
            try:
                alive, delivered = await _look_at.options(scheduling_strategy=place).remote(path)
            except RayError:  # the node is gone, with its process; what it last reported has to do
                alive, delivered = False, 0
        self._state.delivered(consumer, delivered, time.monotonic())
        if alive or self._consumers.pop(consumer, None) is None:
            if self._state.finished:
                self._changes.notify()
            return
        if probe is not None:
            probe.close()
        self._state.reclaim(consumer, delivered, time.monotonic())
        self._changes.notify()

    # -- everybody -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """No more puts; consumers get what is left, then ChannelClosed."""
        self._state.closed = True
        self._changes.notify()

    async def metrics(self) -> dict[str, Any]:
        """See `QueueState.metrics`."""
        metrics = self._state.metrics(time.monotonic(), self._name)
        metrics["drops"].update(self._lost)
        return metrics


_look_at = ray.remote(num_cpus=0, max_retries=0)(look_at)


def _sent(part: Part) -> tuple[Any, int, int]:
    """What is sent for a part, and where its items are in that: a block is cut to the part, a reference stays whole."""
    payload = part.chunk.payload
    if isinstance(payload, list):
        return payload, part.start, part.stop
    return (payload if len(part) == part.chunk.count else cut(payload, part.start, part.stop)), 0, len(part)


class Channel:
    """Handle to a channel: picklable, usable from the driver, tasks and actors; thread-safe."""

    def __init__(self, actor: Any, name: str, capacity: int) -> None:
        self.actor, self.name, self.capacity = actor, name, capacity
        self._sender = Sender(actor, name, capacity)
        self._receiver = Receiver(actor, name, capacity)

    @classmethod
    def create(
        cls,
        name: str,
        capacity: int = 4096,
        on_full: OnFull = "block",
        order: str | Policy = "fifo",
        alarm_seconds: float = 60.0,
        **options: Any,
    ) -> Channel:
        """Start a channel for `capacity` items; `options` are Ray's for its actor.

        `order`: fifo, priority, or a policy of the user's, which says what leaves next: a function of `policies.Waiting`s,
        or its name as module:function. It looks at all that waits for each piece that leaves. Raises InvalidConfig when it
        cannot be found; what is wrong with it later is what `get` raises.
        """
        load_policy(order)
        actor = ray.remote(ChannelActor).options(**{"num_cpus": 0, **options})
        return cls(actor.remote(name, capacity, order, on_full, alarm_seconds), name, capacity)

    def __reduce__(self) -> Any:
        return (Channel, (self.actor, self.name, self.capacity))

    def put(self, item: Any, priority: float = 0.0, timeout: float = 60.0, weight: int = 1) -> None:
        """Put an item; returns when it is queued for sending, waiting up to `timeout` seconds for room.

        `priority` matters with order `priority` (larger first); `weight` to `get_many(most_weight=...)`.
        """
        self._sender.put(item, priority, weight, time.monotonic() + timeout)

    def put_many(self, items: Iterable[Any], priority: float = 0.0, timeout: float = 60.0) -> None:
        """`put` each of the items. Raises DeadlineExceeded when not all had room in time."""
        self._sender.put_many(items, priority, time.monotonic() + timeout)

    def flush(self, timeout: float = 60.0) -> tuple[int, int]:
        """Wait until nothing put so far depends on this process; `(accepted, refused)` items."""
        return self._sender.flush(time.monotonic() + timeout)

    def get(self, timeout: float = 60.0) -> Any:
        """The next item. Raises DeadlineExceeded after `timeout` seconds, ChannelClosed at the end."""
        return self._receiver.get(1, 1, time.monotonic() + timeout)[0]

    def get_many(
        self, most: int, timeout: float = 60.0, least: int = 1, most_weight: int | None = None
    ) -> list[Any]:
        """From `least` to `most` items: as many as are at hand once there are `least`.

        With `most_weight` the batch ends before its weights exceed it (a single heavier item comes alone).
        Raises as `get`; a closed channel may give fewer than `least` at its end.
        """
        return self._receiver.get(least, most, time.monotonic() + timeout, most_weight)

    def leave(self) -> None:
        """Stop consuming: what was fetched ahead goes back to the queue at once."""
        self._receiver.close()

    def size(self) -> int:
        """Items in the queue: put by anyone, not yet fetched by a consumer."""
        return cast(int, self.metrics()["size"])

    def metrics(self) -> dict[str, Any]:
        """See `QueueState.metrics`."""
        ref = self.actor.metrics.remote()
        return cast(dict[str, Any], answer(ref, f"channel {self.name}", "reading metrics", CALL_SECONDS))

    def close(self, timeout: float = 60.0) -> None:
        """Flush, then end the channel: no more puts; consumers get what is left, then ChannelClosed."""
        self.flush(timeout)
        answer(self.actor.close.remote(), f"channel {self.name}", "closing", CALL_SECONDS)
