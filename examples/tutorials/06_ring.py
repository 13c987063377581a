"""A ring of four queue actors, each of which doubles what it gets and sends it on, that goes round once and ends.

    python examples/tutorials/06_ring.py

Two drafts of it are often seen, and neither works. In the first, `receive` calls `process_and_send(item)` without the next
actor, so nothing is ever sent on. In the second, each actor calls the next and waits for it with `ray.get`: the last one
waits for the first, which waits for the last, for ever. Here nobody waits for the next one, a thread takes from the queue,
and an item knows how far it has come. A last item tells the threads to end.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from show import Row, ray_here, table

Item = tuple[int, list[int]]
_END = None
STEPS = 4
"""Actors that an item passes: once round."""


@ray.remote(concurrency_groups={"results": 1})
class Stage:
    """One actor of the ring.

    Who waits for a result does so in a thread of its own: an actor does one call at a time, and `take` would keep it from
    receiving what it waits for.
    """

    def __init__(self, name: int) -> None:
        self.name, self.next, self.result = name, None, queue.SimpleQueue[list[int]]()
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def connect(self, following: Any) -> None:
        """Whom to send to."""
        self.next = following

    def receive(self, item: Item) -> None:
        """Returns at once: the thread works."""
        self._items.put(item)

    def _work(self) -> None:
        # `get` waits by itself: an event beside the queue would only add the moment between its test and its clearing.
        while (item := self._items.get()) is not _END:
            passed, values = item
            try:
                doubled = [2 * value for value in values]
            except TypeError as error:
                self._error = f"stage {self.name}: {values!r}: {error}"  # told at the end; the next item is not lost with it
                continue
            if passed + 1 == STEPS:
                self.result.put(doubled)
            else:
                self.next.receive.remote((passed + 1, doubled))  # not waited for: it may be waiting for us

    @ray.method(concurrency_group="results")
    def take(self, timeout: float) -> list[int]:
        """A result that ended here."""
        return self.result.get(timeout=timeout)

    def end(self) -> str | None:
        """Works off what is there, ends the thread, and says what went wrong."""
        self._items.put(_END)
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        return self._error


@ray.remote
class WaitingStage:
    """The second draft: it waits for the next actor inside the call, and can do nothing else meanwhile."""

    def connect(self, following: Any) -> None:
        """Whom to send to."""
        self.next = following

    def receive(self, passed: int, values: list[int]) -> list[int]:
        """What comes out at the end of the ring."""
        doubled = [2 * value for value in values]
        if passed == STEPS:  # one more than there are actors: back at the first, which is still waiting
            return doubled
        result: list[int] = ray.get(self.next.receive.remote(passed + 1, doubled))
        return result


def ring(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    """Four actors, the last of which sends to the first."""
    stages = [kind.remote(*one) for one in (arguments or [()] * STEPS)]
    ray.get(
        [one.connect.remote(other) for one, other in zip(stages, stages[1:] + stages[:1], strict=True)],
        timeout=60,
    )
    return stages


def main(items: int = 3, patience: float = 2.0) -> list[Row]:
    """Rows: the ring, what came out of it, and how it ended."""
    rows: list[Row] = []
    stages = ring(Stage, *[(name,) for name in range(STEPS)])
    for item in range(items):
        ray.get(stages[0].receive.remote((0, [1 + item, 2, 3, 4])), timeout=60)
    found = [ray.get(stages[-1].take.remote(30), timeout=60) for _ in range(items)]
    wrong = [one for one in ray.get([stage.end.remote() for stage in stages], timeout=60) if one]
    rows.append(
        {
            "ring": "nobody waits for the next",
            "result": str(found[0]),
            "end": "; ".join(wrong) or "four threads ended",
        }
    )

    stages += (waiting := ring(WaitingStage))
    try:
        result = str(ray.get(waiting[0].receive.remote(0, [1, 2, 3, 4]), timeout=patience))
        end = "ended"
    except GetTimeoutError:
        result, end = "none", f"the first waits for itself: given up after {patience:g} s"
    rows.append({"ring": "each waits for the next", "result": result, "end": end})
    for stage in stages:
        ray.kill(stage)
    table(rows, "1, 2, 3, 4 once round")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
