"""What an actor that computes is to its group; `worker_group.py` has the driver's side, which imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rl_trainer.flow.ways import Way, travelled
from rl_trainer.observe.timeline import SpanRecorder

if TYPE_CHECKING:
    from rl_trainer.flow.parcels import Desk, Parcel


class Worker:
    """What an actor that computes is to its group, beside its own methods. `name`: such as learner 0."""

    def __init__(self, name: str):
        self.name = name
        self.spans = SpanRecorder(name)
        self.device = "cpu"  # of what comes point to point

    @cached_property
    def _desk(self) -> Desk:
        from rl_trainer.flow.parcels import Desk

        return Desk(self.name)

    def offload(self) -> int:
        """Gives the memory of what its device holds back, until `onload`; how many bytes. A second call does nothing."""
        return 0

    def onload(self) -> int:
        """Takes all of it up again, with the same bits; how many bytes. A second call does nothing."""
        return 0

    def _moved(self, name: str, move: Callable[[], int]) -> int:
        """`move`, which says how many bytes it has moved, as a span of this name."""
        with self.spans.span(name) as said:
            said["bytes"] = size = move()
        return size

    def repeat(
        self, work: Callable[[], Callable[[], object]], seconds: float, least: int = 2
    ) -> list[tuple[float, float]]:
        """Does what `work` returns again and again for `seconds`, `least` times at least.

        Returns when each of them began and ended, seconds since the epoch; one before them, of cold caches, is not told.
        """
        once = work()
        once()
        found: list[tuple[float, float]] = []
        began = time.time()
        while len(found) < least or found[-1][1] - began < seconds:
            start = time.time()
            once()
            found.append((start, time.time()))
        return found

    def send(self, value: Any, to: int | None = None, way: Way | None = None) -> Parcel:
        """A parcel with `value`, for `recv` of another worker; see `Desk.send`."""
        with self.spans.span("send") as said:
            parcel = self._desk.send(value, to, way)
            said |= travelled([parcel.way], parcel.size)
        return parcel

    def recv(self, parcel: Parcel, timeout: float | None = None) -> Any:
        """What another worker has sent; see `Desk.receive`, which knows how long it waits."""
        limit = {} if timeout is None else {"timeout": timeout}
        with self.spans.span("recv", source=parcel.source, **travelled([parcel.way], parcel.size)):
            return self._desk.receive(parcel, device=self.device, **limit)
