"""ray.util.queue.Queue against rltrain's channel: the same items, and what becomes of those that a dead consumer had.

python examples/tutorials/07_queues.py
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.queue import Queue
from show import Clock, Row, ray_here, table

from rl_trainer.flow.channel import Channel, ChannelClosed

CAPACITY = 2048
TAKEN = 10


@ray.remote
class Producer:
    """Puts the numbers from 0 on: where the queue is full, it waits."""

    def run(self, queue: Any, count: int) -> None:
        """Puts `count` of them."""
        for item in range(count):
            queue.put(item)
        if isinstance(queue, Channel):
            queue.flush()  # from here on nothing depends on this process


@ray.remote
class Consumer:
    """Takes items; `dies` does so in the middle, without a word."""

    def run(self, queue: Any, count: int) -> int:
        """Takes `count` items, or what there is; how many."""
        for taken in range(count):
            try:
                queue.get(timeout=60)
            except ChannelClosed:
                return taken
        return count

    def dies(self, queue: Any, count: int) -> None:
        """After `count` items."""
        for _ in range(count):
            queue.get(timeout=60)
        os.kill(os.getpid(), signal.SIGKILL)


def measured(queue: Any, count: int) -> float:
    """Items per second from one actor to another."""
    producer, consumer = Producer.remote(), Consumer.remote()
    ray.get([one.__ray_ready__.remote() for one in (producer, consumer)], timeout=60)
    with Clock() as clock:
        done = producer.run.remote(queue, count)
        assert ray.get(consumer.run.remote(queue, count), timeout=300) == count
        ray.get(done, timeout=60)
    return count / clock.seconds


def left_by_a_dead_consumer(queue: Any, count: int) -> int:
    """How many of `count` items others still get when a consumer was killed after it had used TAKEN of them."""
    ray.get(Producer.remote().run.remote(queue, count), timeout=60)
    consumer = Consumer.remote()
    with suppress(RayActorError):
        ray.get(consumer.dies.remote(queue, TAKEN), timeout=60)
    left: int = ray.get(Consumer.remote().run.remote(queue, count - TAKEN), timeout=60)
    return left


def main(count: int = 2000) -> list[Row]:
    """Rows: the queue, items per second, and items left after a consumer's death."""
    rows = []
    for name, make in (
        ("ray.util.queue.Queue", lambda: Queue(maxsize=CAPACITY)),
        ("rltrain's Channel", lambda: Channel.create("tutorial", capacity=CAPACITY)),
    ):
        rows.append(
            {
                "queue": name,
                "items/s": f"{measured(make(), count):,.0f}",
                f"left of {TAKEN + 90} when a consumer died with {TAKEN}": left_by_a_dead_consumer(
                    make(), TAKEN + 90
                ),
            }
        )
    table(rows, f"{count} numbers from one actor to another")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
