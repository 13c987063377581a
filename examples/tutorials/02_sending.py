"""Actors, and four ways of sending from one to another: what each guarantees, and what it costs.

python examples/tutorials/02_sending.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import ray
from show import Clock, Row, ray_here, table

ITEMS = 200


@ray.remote
class Receiver:
    """An actor's methods run one after another, in the order in which one caller called them."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []

    def receive(self, sender: str, item: int) -> int:
        """Keeps it; how many there are now."""
        self.received.append((sender, item))
        return len(self.received)

    def all(self) -> list[tuple[str, int]]:
        """In the order in which they came."""
        return self.received


@ray.remote
class AsyncReceiver:
    """One `async def` makes the actor asynchronous: calls take turns wherever one of them awaits something."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []
        self._pause = random.Random(0)

    async def receive(self, sender: str, item: int) -> int:
        """Keeps it, after a while; how many there are then."""
        await asyncio.sleep(self._pause.uniform(0.0, 0.002))  # as a call of a tool or a database would
        self.received.append((sender, item))
        return len(self.received)

    async def all(self) -> list[tuple[str, int]]:
        """In the order in which they were kept."""
        return self.received


@ray.remote
class Sender:
    """Sends the numbers from 0 on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, receiver: Any, item: int) -> Any:
        """One call: what comes back to the caller is a reference to a reference."""
        return receiver.receive.remote(self.name, item)

    def send_all(self, receiver: Any, count: int) -> list[Any]:
        """Calls without waiting: the references of all of them."""
        return [receiver.receive.remote(self.name, item) for item in range(count)]


def one_by_one(count: int, senders: list[Any], receiver: Any) -> None:
    """Way 1: wait for each item before the next is sent. Two `get` for each: one for the call, one for what it returned."""
    for item in range(count):
        reference = ray.get(senders[0].send.remote(receiver, item), timeout=60)
        assert ray.get(reference, timeout=60) == item + 1


def all_at_once(count: int, senders: list[Any], receiver: Any) -> None:
    """Ways 2 to 4: nobody waits for a single item; `get` of all references is the barrier."""
    share = count // len(senders)
    calls = ray.get([sender.send_all.remote(receiver, share) for sender in senders], timeout=60)
    ray.get([reference for references in calls for reference in references], timeout=60)


def in_order(received: list[tuple[str, int]]) -> bool:
    """Whether the items of each sender came in the order in which it sent them."""
    of: dict[str, list[int]] = {}
    for sender, item in received:
        of.setdefault(sender, []).append(item)
    return all(items == sorted(items) for items in of.values())


def main(count: int = ITEMS) -> list[Row]:
    """Rows: the way, items per second, whether they came in order, and what is guaranteed."""
    ways: list[tuple[str, Callable[[int, list[Any], Any], None], int, Any, str]] = [
        ("1 one by one", one_by_one, 1, Receiver, "each item has arrived before the next is sent"),
        ("2 to an asynchronous actor", all_at_once, 1, AsyncReceiver, "all have arrived; in any order"),
        ("3 without waiting", all_at_once, 1, Receiver, "the sender's order"),
        ("4 two senders", all_at_once, 2, Receiver, "each sender's order; between them any"),
    ]
    rows = []
    for name, way, many, kind, guarantee in ways:
        senders, receiver = [Sender.remote(chr(97 + at)) for at in range(many)], kind.remote()
        ray.get([actor.__ray_ready__.remote() for actor in (*senders, receiver)], timeout=60)
        with Clock() as clock:
            way(count, senders, receiver)
        received = ray.get(receiver.all.remote(), timeout=60)
        assert len(received) == count, "every item arrives once"
        rows.append(
            {
                "way": name,
                "items/s": f"{count / clock.seconds:,.0f}",
                "in order": "yes" if in_order(received) else "no",
                "guaranteed": guarantee,
            }
        )
        for actor in (*senders, receiver):
            ray.kill(actor)
    table(rows, f"{count} items from actor to actor")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
