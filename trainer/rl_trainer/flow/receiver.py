"""The consumer's end of a channel: fetches items ahead under a lease and hands them out one by one.

While the caller works through what is there, the next fetch is on its way. Where there are other consumers it takes
what the queue holds and does not wait for more: one of them might be waiting already. How much is fetched ahead
follows the caller: it doubles while fetches follow each other within `FAST` seconds and leave something behind, and
halves when they take longer than `SLOW`, so a slow consumer does not hoard what another could take.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import ObjectLostError

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_trainer.flow.calls import answer
from rl_trainer.flow.chunks import Encoded, decode, pack, split, unpack
from rl_trainer.flow.liveness import Progress

FAST, SLOW = 0.02, 0.05
AHEAD_ITEMS = 1024
POLL_SECONDS = 30.0  # how long the actor keeps a fetch waiting for an item
CALL_SECONDS = 60.0  # deadline of calls that the actor answers at once


class ChannelClosed(RLTrainError):
    """The channel was closed and every item has been delivered."""


class LeasedPart(NamedTuple):
    """Items `start` to `stop` of a chunk, under lease `lease`; `payload` is the block, or `[reference]`."""

    lease: int
    payload: Any
    start: int
    stop: int


class Fetched(NamedTuple):
    """Answer to a fetch: leased parts, and how many items the queue still holds.

    `drained`: the channel is closed and its queue is empty, but another consumer might still give items back.
    `finished`: no item will ever come.
    """

    parts: list[Any]  # the fields of `LeasedPart`s: plain tuples travel faster
    left: int
    drained: bool = False
    finished: bool = False


class Receiver:
    """One per process and channel handle; thread-safe."""

    def __init__(self, actor: Any, name: str, capacity: int) -> None:
        self._actor, self._name = actor, f"channel {name}"
        self._most = max(1, min(AHEAD_ITEMS, capacity // 2))
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._id = uuid.uuid4().hex
        self._progress: Progress | None = None
        self._parts: deque[LeasedPart] = deque()  # here, but not looked into
        self._items: deque[Encoded] = deque()  # here, still pickled
        self._fetch: Any = None
        self._ahead = 1
        self._fetched_at = 0.0
        self._left = 0  # items in the queue after the last fetch
        self._drained = False
        self._done = 0

    def get(self, least: int, most: int, deadline: float, most_weight: int | None = None) -> list[Any]:
        """From `least` to `most` items, of at most `most_weight` in all unless a single one is heavier.

        Waits until `deadline` (monotonic seconds). Raises DeadlineExceeded, taking nothing; ChannelClosed at
        the end.
        """
        with self._lock:
            waited = False
            try:
                while len(self._items) < least:
                    waited |= not self._parts
                    self._fill(most, deadline)
                    if self._drained and self._items:
                        break  # fewer than asked for, and no more can be counted on
            except ChannelClosed:
                if not self._items:
                    raise
            while len(self._items) < most and self._more_at_hand(most):
                pass
            taken: list[Any] = []
            weight = 0
            while self._items and len(taken) < most:
                weight += self._items[0].weight
                if taken and most_weight is not None and weight > most_weight:
                    break
                taken.append(decode(self._items.popleft()))
            self._count(len(taken))
            if (self._left or not waited) and not self._drained:
                self._fetch_ahead(most)
            # else this caller waits for its producers: asking now would only delay what it has
            return taken

    def close(self) -> None:
        """Give undelivered items back now, not at the end of this process."""
        with self._lock:
            if self._progress is not None:
                self._release()
                answer(self._actor.detach.remote(self._id), self._name, "leaving", CALL_SECONDS)
            self._reset()

    def _count(self, delivered: int) -> None:
        assert self._progress is not None
        self._done += delivered
        self._progress.delivered = self._done  # before the caller has the items: a death cannot come between

    def _fetch_ahead(self, most: int) -> None:
        left = len(self._items) + sum(part.stop - part.start for part in self._parts)
        if self._fetch is None and left <= max(self._ahead, most) // 2:
            self._ask(most, ahead=True)

    def _ask(self, most: int, *, ahead: bool = False) -> None:
        if self._progress is None:
            self._progress = Progress(self._id)
            # A handle that is forgotten counts as gone: the actor sees the lock released.
            self._release = weakref.finalize(self, self._progress.close)
            node = ray.get_runtime_context().get_node_id()
            ref = self._actor.attach.remote(self._id, self._progress.path, node)
            answer(ref, self._name, "joining", CALL_SECONDS)
        message = (self._id, max(self._ahead, most), POLL_SECONDS, self._done, ahead)
        self._fetch = self._actor.pull.remote(pack(message, references=False))

    def _fill(self, most: int, deadline: float) -> None:
        """Bring at least one more item to hand, waiting until the deadline."""
        if self._parts:
            self._open(self._parts.popleft())
            return
        if self._fetch is None:
            self._ask(most)
        try:
            self._arrived(max(0.0, deadline - time.monotonic()))
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"getting an item: {self._name} stayed empty; look at its producers, or wait longer"
            ) from None

    def _more_at_hand(self, most: int) -> bool:
        if self._parts:
            self._open(self._parts.popleft())
            return True
        if self._fetch is not None and ray.wait([self._fetch], timeout=0)[0]:
            return self._arrived(CALL_SECONDS) > 0
        return False

    def _arrived(self, timeout: float) -> int:
        try:
            fetched = Fetched(*unpack(answer(self._fetch, self._name, "getting items", timeout)))
        except DeadlineExceeded:
            raise
        except BaseException:
            self._fetch = None
            raise
        self._fetch = None
        self._left, self._drained = fetched.left, fetched.drained
        parts = [LeasedPart(*part) for part in fetched.parts]
        self._parts.extend(parts)
        count = sum(part.stop - part.start for part in parts)
        now = time.monotonic()
        if count:
            if self._left and now - self._fetched_at < FAST:
                self._ahead = min(2 * self._ahead, self._most)
            elif now - self._fetched_at > SLOW:
                self._ahead = max(1, self._ahead // 2)
            self._fetched_at = now
        elif fetched.finished:
            raise ChannelClosed(f"{self._name} is closed and empty")
        return count

    def _open(self, part: LeasedPart) -> None:
        block = part.payload
        buffers: Sequence[Any] = ()
        if isinstance(block, list):
            try:
                block, *buffers = ray.get(block[0], timeout=CALL_SECONDS)
            except ObjectLostError:
                # The producer died. What it had flushed was adopted meanwhile; the rest is gone with it.
                ref = self._actor.recover.remote(self._id, part.lease)
                recovered = answer(ref, self._name, "recovering items", CALL_SECONDS)
                if recovered is None:
                    self._count(part.stop - part.start)
                    return
                block, *buffers = ray.get(recovered[0], timeout=CALL_SECONDS)
        self._items.extend(split(block, buffers, part.start, part.stop))
