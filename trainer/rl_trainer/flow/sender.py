"""The producer's end of a channel: collects items, sends them in chunks while earlier chunks are on their way.

`put` only pickles and queues; a background thread sends what has collected since (natural batching: alone an
item leaves at once, under load a chunk grows). At most a window of items and `WINDOW_BYTES` are unacknowledged;
then `put` waits.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_trainer.flow.calls import answer
from rl_trainer.flow.chunks import Bytes, Encoded, encode, join, pack

INLINE_BYTES = 90_000  # of a chunk inside a call; from 100 KB on Ray would use the object store itself
CHUNK_BYTES = 64 * 1024 * 1024
CHUNK_ITEMS = 1024
SMALL_ITEMS = 200
WINDOW_BYTES = 128 * 1024 * 1024
PUSHES_IN_FLIGHT = 2
IDLE_SECONDS = 2.0


class _Blocks:
    """Reusable memory for copies of big buffers: fresh pages would cost more than the copy itself."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def copy(self, buffer: Bytes) -> Bytes:
        free = self._free.get(buffer.nbytes)
        block = free.pop() if free else np.empty(buffer.nbytes, np.uint8)
        block[:] = buffer
        return block

    def give_back(self, buffers: Iterable[Bytes]) -> None:
        for buffer in buffers:
            self._free.setdefault(buffer.nbytes, []).append(buffer)
        if len(self._free) > 64:  # sizes that keep changing: nothing to reuse
            self._free.clear()


class Sender:
    """One per process and channel handle; thread-safe."""

    def __init__(self, actor: Any, name: str, capacity: int) -> None:
        self._actor, self._name = actor, name
        self._id = uuid.uuid4().hex
        self._chunk_items = max(1, min(CHUNK_ITEMS, capacity // 2))
        self._window = max(1, min(2 * CHUNK_ITEMS, capacity))
        self._pending: deque[tuple[Encoded, float, bool]] = deque()  # item, priority, its buffers are copies
        self._unacknowledged = 0
        self._bytes = 0
        self._sent = 0  # chunks
        self._queued = self._written = 0  # items; written: pickled into a message or the object store
        self._in_flight: deque[tuple[Any, int, int]] = deque()  # answer, items, bytes
        self._sending = False  # the thread is writing a chunk
        self._idle = False  # the thread waits for items
        self._by_reference = False  # since the last flush
        self._error: BaseException | None = None
        self._blocks = _Blocks()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self.accepted = 0
        self.refused = 0

    def put(self, item: Any, priority: float, weight: int, deadline: float) -> None:
        """Queue an item, waiting for room in the window until `deadline` (monotonic seconds)."""
        encoded = encode(item, weight)
        with self._condition:
            if not self._has_room() or self._error is not None:
                self._wait_for(self._has_room, deadline, "putting an item")
            if encoded.buffers:  # the caller may change its arrays as soon as put returns
                encoded = encoded._replace(buffers=[self._blocks.copy(buffer) for buffer in encoded.buffers])
            self._queue(encoded, priority, bool(encoded.buffers))
            self._kick()

    def put_many(self, items: Iterable[Any], priority: float, deadline: float) -> None:
        """Queue several items. Their big buffers are not copied: they are written before this returns."""
        last = 0
        ready = [encode(item) for item in items]
        with self._condition:
            for encoded in ready:
                if not self._has_room() or self._error is not None:
                    self._kick()
                    self._wait_for(self._has_room, deadline, "putting items")
                self._queue(encoded, priority, False)
                if encoded.buffers:
                    last = self._queued
            self._kick()
            if self._written < last:
                self._wait_for(lambda: self._written >= last, deadline, "putting items")

    def _queue(self, encoded: Encoded, priority: float, copied: bool) -> None:
        self._pending.append((encoded, priority, copied))
        self._queued += 1
        self._unacknowledged += 1
        self._bytes += encoded.nbytes

    def _kick(self) -> None:
        """See that what is queued will be sent, from here if that costs no waiting: a thread switch would."""
        if self._pending and not self._in_flight and not self._sending and not self._pending[0][0].buffers:
            self._send_next()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"channel {self._name}", daemon=True)
            self._thread.start()
        if self._idle:
            self._condition.notify_all()

    def flush(self, deadline: float) -> tuple[int, int]:
        """Wait until nothing that was put depends on this process; `(accepted, refused)` items so far."""
        with self._condition:
            self._wait_for(lambda: self._unacknowledged == 0, deadline, "flushing")
            by_reference, self._by_reference = self._by_reference, False
        if by_reference:
            left = max(0.0, deadline - time.monotonic())
            answer(self._actor.flush.remote(self._id), f"channel {self._name}", "flushing", left)
        return self.accepted, self.refused

    def _has_room(self) -> bool:
        return self._unacknowledged < self._window and self._bytes < WINDOW_BYTES

    def _wait_for(self, condition: Any, deadline: float, phase: str) -> None:
        """Wait under the lock; raises the sending thread's error, or DeadlineExceeded."""
        while not condition() and self._error is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    f"{phase}: channel {self._name} stayed full; "
                    "look at its consumers, or give it a larger capacity"
                )
            self._condition.wait(left)
        if self._error is not None:
            raise self._error

    def _next_chunk(self) -> tuple[list[Encoded], float, list[Bytes]]:
        """Items to send together: of one priority, and no more than fit a call unless they fill one by themselves."""
        items: list[Encoded] = []
        copies: list[Bytes] = []
        priority = self._pending[0][1]
        size, limit = 0, CHUNK_BYTES
        while self._pending and len(items) < self._chunk_items:
            item, own, copied = self._pending[0]
            if own != priority or (items and size + item.nbytes > limit):
                break
            if len(items) == SMALL_ITEMS:  # small ones: better several calls than the object store
                limit = max(size, INLINE_BYTES)
            self._pending.popleft()
            items.append(item)
            size += item.nbytes
            if copied:
                copies += item.buffers
        return items, priority, copies

    def _run(self) -> None:
        try:
            while True:
                with self._condition:
                    while not self._pending and not self._in_flight:
                        self._idle = True
                        awake = self._condition.wait(IDLE_SECONDS)
                        self._idle = False
                        if not awake and not self._pending and not self._in_flight:
                            self._thread = None  # let the channel go when nobody else holds it
                            return
                    if self._pending and len(self._in_flight) < PUSHES_IN_FLIGHT:
                        self._send_next()
                        continue
                    ref, count, size = self._in_flight[0]
                accepted = answer(ref, f"channel {self._name}", "putting items", None)
                with self._condition:
                    self._in_flight.popleft()
                    self.accepted += accepted
                    self.refused += count - accepted
                    self._unacknowledged -= count
                    self._bytes -= size
                    self._condition.notify_all()
        except BaseException as error:  # handed to the next caller of put or flush
            with self._condition:
                self._error = error if isinstance(error, RLTrainError) else RLTrainError(str(error))
                self._condition.notify_all()

    def _send_next(self) -> None:
        """Send the next chunk. Called with the lock held, which is let go while bytes are written."""
        items, priority, copies = self._next_chunk()
        number, self._sent = self._sent, self._sent + 1
        size = sum(item.nbytes for item in items)
        buffers = [buffer for item in items for buffer in item.buffers]
        payload: Any = join(items)
        if buffers or size > INLINE_BYTES:
            self._by_reference = self._sending = True
            self._condition.release()
            try:
                payload = [ray.put([np.frombuffer(payload, np.uint8), *buffers])]
            finally:
                self._condition.acquire()
                self._sending = False
        message = (self._id, number, len(items), priority, payload)
        ref = self._actor.push.remote(pack(message, references=isinstance(payload, list)))
        self._in_flight.append((ref, len(items), size))
        if buffers:
            self._blocks.give_back(copies)
        self._written += len(items)
        self._condition.notify_all()
