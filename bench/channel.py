"""The channel against `ray.util.queue.Queue` and TransferQueue: items/s, MB/s, p50 and p99 of put and get.

    python bench/channel.py [--seconds 2] [--repetitions 3] [--sizes "200 B,16 KB,1 MB"]
    [--without-transferqueue]

Throughput: producers put and consumers get as fast as they can; what is delivered inside the window counts.
Latency is compared at the same load, half of what the Ray queue can carry at that size: `put` is the time of
the call, `get` the time from when there was both an item (the put's beginning) and a consumer that wanted it (its
last item's arrival: asking again and again is waiting, too) to the item's arrival.
Contenders take turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import Any

import peers
import ray
import table
from channel_items import SIZES, make_items, percentiles, touch
from ray.util.queue import Empty, Full, Queue

from rl_api.errors import DeadlineExceeded
from rl_trainer.flow.channel import Channel
from rl_trainer.run.ray_session import ray_session

CAPACITY = {"200 B": 4096, "16 KB": 4096, "1 MB": 256}  # items
SHAPES = {"1 to 1": (1, 1), "4 to 2": (4, 2)}
BATCHES = (1, 64)
WARM = 0.7
PEER = ("TransferQueue==0.1.11", "torch==2.13.0", "ray[default]==2.60.0")


class OurLink:
    """The channel as the benchmark uses it."""

    def __init__(self, size: str) -> None:
        self.channel = Channel.create(f"bench {size}", capacity=CAPACITY[size])
        self.actor = self.channel.actor

    def put(self, items: list[Any]) -> bool:
        try:
            if len(items) == 1:
                self.channel.put(items[0], timeout=0.5)
            else:
                self.channel.put_many(items, timeout=5.0)
        except DeadlineExceeded:
            return False
        return True

    def get(self, count: int) -> list[Any]:
        try:
            return [self.channel.get(0.3)] if count == 1 else self.channel.get_many(count, timeout=0.3)
        except DeadlineExceeded:
            return []

    def leave(self) -> None:
        self.channel.leave()


class RayLink:
    """`ray.util.queue.Queue`: one by one with timeouts, batches with the calls that do not wait."""

    def __init__(self, size: str) -> None:
        self.queue = Queue(CAPACITY[size], actor_options={"num_cpus": 0})
        self.actor = self.queue.actor

    def put(self, items: list[Any]) -> bool:
        try:
            if len(items) == 1:
                self.queue.put(items[0], timeout=0.5)
            else:
                self.queue.put_nowait_batch(items)
        except Full:
            time.sleep(0.001)
            return False
        return True

    def get(self, count: int) -> list[Any]:
        try:
            return [self.queue.get(timeout=0.3)] if count == 1 else self.queue.get_nowait_batch(count)
        except Empty:
            time.sleep(0.0005)
            return []

    def leave(self) -> None:
        pass


@ray.remote(num_cpus=0)
class Side:
    """A producer or consumer process, used for all measurements."""

    def ready(self) -> None:
        """Answers when the process is up."""

    def produce(
        self, link: Any, size: str, batch: int, start: float, seconds: float, seed: int, rate: float | None
    ) -> list[float]:
        """Put for `seconds`, at `rate` items per second or as fast as possible; times of the calls after warm-up."""
        items = itertools.cycle(make_items(size, seed))
        begin, end = start + WARM, start + WARM + seconds
        due, times = start + seed * 0.001, []
        time.sleep(max(0.0, due - time.monotonic()))
        while (at := time.monotonic()) < end:
            chosen = [next(items) for _ in range(batch)]
            if rate is not None:  # every item: a get may begin in the middle of a put's batch
                chosen = [{**item, "at": at} for item in chosen]
            stayed = link.put(chosen)
            if stayed and at >= begin:
                times.append(time.monotonic() - at)
            if rate is not None:
                due = max(due + batch / rate, time.monotonic() - 0.05)
                time.sleep(max(0.0, due - time.monotonic()))
        return times

    def consume(self, link: Any, batch: int, start: float, seconds: float) -> tuple[int, list[float]]:
        """Get until the producers have stopped and nothing is left; items inside the window, and times of the gets."""
        begin, end = start + WARM, start + WARM + seconds
        delivered, times = 0, []
        quiet_since = None
        wanted = time.monotonic()
        while True:
            items = link.get(batch)
            done = time.monotonic()
            touch(items)
            if begin <= done <= end and items:
                delivered += len(items)
                times.append(done - max(wanted, items[0].get("at", wanted)))  # the oldest item's
            if items:
                wanted = time.monotonic()
            if items or done < end:
                quiet_since = None
            elif done - (quiet_since := quiet_since or done) > 0.3:
                link.leave()
                return delivered, times


def measure(
    sides: list[Any],
    link: Any,
    size: str,
    batch: int,
    shape: tuple[int, int],
    seconds: float,
    rate: Any = None,
) -> dict[str, Any]:
    """One measurement: items per second, put and get percentiles."""
    producers, consumers = sides[: shape[0]], sides[4 : 4 + shape[1]]
    start = time.monotonic() + 0.3
    each = None if rate is None else rate / shape[0]
    gets = [side.consume.remote(link, batch, start, seconds) for side in consumers]
    puts = [
        side.produce.remote(link, size, batch, start, seconds, seed, each)
        for seed, side in enumerate(producers)
    ]
    limit = 10 * seconds + 60
    put_times = ray.get(puts, timeout=limit)
    got = ray.get(gets, timeout=limit)
    return {
        "items_per_second": sum(delivered for delivered, _ in got) / seconds,
        "put": percentiles([value for times in put_times for value in times]),
        "get": percentiles([value for _, times in got for value in times]),
    }


def main() -> int:
    """Measure, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--without-transferqueue", action="store_true")
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    cases = list(itertools.product(SHAPES, sizes, BATCHES))

    ours: dict[Any, list[dict[str, Any]]] = {case: [] for case in cases}
    rays: dict[Any, list[dict[str, Any]]] = {case: [] for case in cases}
    tqs: dict[Any, list[dict[str, Any]]] = {case: [] for case in cases}
    calm: dict[Any, dict[str, list[dict[str, Any]]]] = {}
    with ray_session(4):
        sides = [Side.remote() for _ in range(6)]
        ray.get([side.ready.remote() for side in sides])
        for size in sizes:
            links = {"rltrain": OurLink(size), "ray": RayLink(size)}
            for name, link in links.items():  # every process has touched the object store's memory once
                measure(sides, link, size, 64, SHAPES["4 to 2"], 1.0)
                print(f"{size}: {name} warm", flush=True)
            for shape, batch in itertools.product(SHAPES, BATCHES):
                case = (shape, size, batch)
                for _ in range(options.repetitions):
                    for name, results in (("ray", rays), ("rltrain", ours)):
                        results[case].append(
                            measure(sides, links[name], size, batch, SHAPES[shape], options.seconds)
                        )
                load = median(rays[case]) / 2
                calm[case] = {"rltrain": [], "ray": []}
                for _ in range(options.repetitions):
                    for name, link in links.items():
                        calm[case][name].append(
                            measure(sides, link, size, batch, SHAPES[shape], options.seconds, rate=load)
                        )
                print(f"{size}, {shape}, batch {batch}: {median(ours[case]):,.0f} items/s", flush=True)
            for link in links.values():
                ray.kill(link.actor)

    if not options.without_transferqueue:
        python = peers.environment("transferqueue", PEER)
        with peers.Worker("transferqueue", python, table.RESULTS.parent / "peer_transferqueue.py") as peer:
            for shape, size, batch in cases:
                producers, consumers = SHAPES[shape]
                request = {
                    "size": size,
                    "batch": batch,
                    "producers": producers,
                    "consumers": consumers,
                    "warm": WARM,
                    "seconds": options.seconds,
                }
                tqs[shape, size, batch] = [peer(request) for _ in range(options.repetitions)]
    return 0 if report(cases, ours, rays, tqs, calm) else 1


def median(results: list[dict[str, Any]]) -> float:
    """Median items per second of the repetitions; 0 where there are none."""
    return statistics.median(result["items_per_second"] for result in results) if results else 0.0


def worst(results: list[dict[str, Any]], call: str, which: str) -> float:
    """Median over the repetitions of a percentile, in milliseconds."""
    return statistics.median(result[call][which] for result in results)


def report(cases: Any, ours: Any, rays: Any, tqs: Any, calm: Any) -> bool:
    """Print and write both tables; True when every target was reached."""
    rows, checks = [], []
    for case in cases:
        shape, size, batch = case
        mine, ray_rate, tq_rate = median(ours[case]), median(rays[case]), median(tqs[case])
        times_ray, times_tq = mine / ray_rate, mine / tq_rate if tq_rate else float("nan")
        rows.append(
            [
                f"{size}, {shape}, {'one by one' if batch == 1 else f'batches of {batch}'}",
                *(
                    table.spread([r["items_per_second"] for r in results[case]]) if results[case] else "-"
                    for results in (ours, rays, tqs)
                ),
                mine * SIZES[size] / 1e6,
                times_ray,
                times_tq,
            ]
        )
        wanted = 10.0 if batch == 1 else 1.0 if size == "1 MB" else 3.0
        if shape == "1 to 1":
            checks.append(table.at_least(f"{rows[-1][0]}: items/s over the Ray queue's", times_ray, wanted))
        if tq_rate:
            checks.append(table.at_least(f"{rows[-1][0]}: items/s over TransferQueue's", times_tq, 1.0))
    columns = ["items", "rltrain items/s", "ray queue", "TransferQueue", "MB/s", "x ray", "x TQ"]
    passed = table.report("channel-throughput", columns, rows, checks=checks)

    rows, checks = [], []
    for case in cases:
        shape, size, batch = case
        label = f"{size}, {shape}, {'one by one' if batch == 1 else f'batches of {batch}'}"
        values = {
            (name, call, which): worst(calm[case][name], call, which)
            for name in ("rltrain", "ray")
            for call in ("put", "get")
            for which in ("p50", "p99")
        }
        rows.append([label, median(rays[case]) / 2, *values.values()])
        for call in ("put", "get"):
            mine, other = values["rltrain", call, "p99"], values["ray", call, "p99"]
            checks.append(
                table.at_most(f"{label}: p99 of {call} against the Ray queue's", mine, other, " ms")
            )
    columns = ["same load", "items/s"] + [
        f"{name} {call} {which} ms"
        for name in ("rltrain", "ray")
        for call in ("put", "get")
        for which in ("p50", "p99")
    ]
    return table.report("channel-latency", columns, rows, checks=checks) and passed


if __name__ == "__main__":
    sys.exit(main())
