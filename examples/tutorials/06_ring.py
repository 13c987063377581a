"""A ring of four queue actors, each of which doubles what it gets and sends it on, that goes round once and ends.

    python examples/tutorials/06_ring.py

Two drafts of it are often seen, and neither works; both are run here as they are written, with a deadline. In the first,
`receive` calls `process_and_send(item)` without the next actor: the second one takes the item for finished. In the second,
each call names the actor to send to, and hands the same one on: the second actor calls itself and waits with `ray.get` for a
call that it can only begin when this one has ended. Naming the right one does not mend it, as somebody waits in every actor
when the item is back at the first. Here nobody waits for the next one, a thread takes from the queue, and an item knows how
far it has come. A last item tells the threads to end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
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
        self._seen = 0
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
            self._seen += 1
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

    def had_one(self) -> bool:
        """Whether an item came so far."""
        return self._seen > 0

    def end(self) -> str | None:
        """Works off what is there, ends the thread, and says what went wrong."""
        self._items.put(_END)
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        return self._error


@ray.remote(concurrency_groups={"questions": 1})
class Draft:
    """What both drafts have: a queue, and how many items were in it."""

    def __init__(self) -> None:
        self.items: queue.Queue[list[int]] = queue.Queue()
        self.seen, self.next = 0, None

    def connect(self, following: Any) -> None:
        """Whom to send to, where the draft has a place for it."""
        self.next = following

    @ray.method(concurrency_group="questions")
    def had_one(self) -> bool:
        """Whether an item came so far; answered also while the actor waits."""
        return self.seen > 0

    def process_and_send(self, values: list[int], following: Any = None) -> list[int]:
        """The first draft: what comes out at the end, which is where no next actor is named."""
        self.seen += 1
        doubled = [2 * value for value in values]
        if following is None:
            return doubled
        result: list[int] = ray.get(following.receive.remote(doubled))
        return result

    def receive(self, values: list[int]) -> list[int]:
        """Of the first draft: the call that does not name anybody."""
        self.items.put(values)
        while not self.items.empty():
            result = self.process_and_send(self.items.get())
        return result

    def receive_and_process(self, values: list[int], following: Any) -> None:
        """The second draft: whoever is called is told to send to himself. (A thread doubles what is in the queue; nobody
        gets that.)"""
        self.seen += 1
        self.items.put(values)
        ray.get(following.receive_and_process.remote(values, following))

    def receive_and_wait(self, passed: int, values: list[int]) -> list[int]:
        """The second one mended: the next actor is the right one, the item knows how far it has come, and yet it waits."""
        self.seen += 1
        doubled = [2 * value for value in values]
        if passed == STEPS:  # one more than there are actors: back at the first, which is still waiting
            return doubled
        result: list[int] = ray.get(self.next.receive_and_wait.remote(passed + 1, doubled))
        return result


def ring(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    """Four actors, the last of which sends to the first."""
    stages = [kind.remote(*one) for one in (arguments or [()] * STEPS)]
    ray.get(
        [one.connect.remote(other) for one, other in zip(stages, stages[1:] + stages[:1], strict=True)],
        timeout=60,
    )
    return stages


def draft(name: str, begin: Callable[[list[Any]], Any], patience: float) -> Row:
    """A row: what came of one item, how many of the actors had it, and whether that came to an end."""
    stages = ring(Draft)
    try:
        result, end = str(ray.get(begin(stages), timeout=patience)), "ended"
    except GetTimeoutError:
        result, end = "none", f"given up after {patience:g} s"
    had = ray.get([stage.had_one.remote() for stage in stages], timeout=60)
    for stage in stages:
        ray.kill(stage)
    return {"ring": name, "result": result, "had it": f"{sum(had)} of {STEPS}", "end": end}


def main(items: int = 3, patience: float = 2.0) -> list[Row]:
    """Rows: the ring, what came out of it, how many actors had the item, and how it ended."""
    values = [1, 2, 3, 4]
    rows = [
        draft(
            "draft 1: forgets the next",
            lambda stages: stages[0].process_and_send.remote(values, stages[1]),
            patience,
        ),
        draft(
            "draft 2: waits for itself",
            lambda stages: stages[0].receive_and_process.remote(values, stages[1]),
            patience,
        ),
        draft(
            "draft 2 mended: each waits for the next",
            lambda stages: stages[0].receive_and_wait.remote(0, values),
            patience,
        ),
    ]
    stages = ring(Stage, *[(name,) for name in range(STEPS)])
    for item in range(items):
        ray.get(stages[0].receive.remote((0, [1 + item, *values[1:]])), timeout=60)
    found = [ray.get(stages[-1].take.remote(30), timeout=60) for _ in range(items)]
    had = sum(ray.get([stage.had_one.remote() for stage in stages], timeout=60))
    wrong = [one for one in ray.get([stage.end.remote() for stage in stages], timeout=60) if one]
    rows.append(
        {
            "ring": "nobody waits for the next",
            "result": str(found[0]),
            "had it": f"{had} of {STEPS}",
            "end": "; ".join(wrong) or "four threads ended",
        }
    )
    for stage in stages:
        ray.kill(stage)
    table(rows, "1, 2, 3, 4 once round")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
