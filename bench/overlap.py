"""How well sampling and learning overlap: simulated engines around the real buffer and the real channel.

    python bench/overlap.py [--steps 40] [--step-seconds 0.5] [--study-seconds 8]

Overlap: samplers hold groups for long-tailed times (log-normal, cut at four times their mean as a token limit
would), the learner sleeps for its time; everything between them is the real buffer. Step time is compared
with the ideal: the slower of the samplers (all slots busy) and the learner, from the times actually drawn. A
staleness of 0 cannot overlap; 4 should cost at most 5 %.

Studies: throughput and fill of a channel of 64, 2,048 and 8,192 items between samplers and a learner that
pauses now and then (a checkpoint, an evaluation), with and without exponential tool latency. Plots in
bench/results.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
import time
from typing import Any

import ray
import table

from rl_api.errors import DeadlineExceeded
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.handle import Buffer
from rl_trainer.flow.channel import Channel, ChannelClosed
from rl_trainer.observe.timeline import Span
from rl_trainer.run.ray_session import ray_session
from rl_trainer.trajectory import Group

SAMPLERS, SLOTS, GROUPS = 2, 16, 64  # samplers, slots of each, groups per step: a step fills all slots twice
SPREAD = 0.8  # sigma of the log-normal
LONGEST = 4.0  # in means
STALENESS = (0, 1, 4)
LEARNER_SHARES = (0.7, 1.0, 1.3)  # learner time over sampler time
CAPACITIES = (64, 2048, 8192)
SKIPPED = 6  # steps until the pipeline is filled


def durations(mean: float, rng: random.Random) -> Any:
    """Endless long-tailed durations in seconds with about this mean."""
    while True:
        yield mean * min(LONGEST, rng.lognormvariate(-(SPREAD**2) / 2, SPREAD))


@ray.remote(num_cpus=0)
class SimulatedSampler:
    """Holds each ticket for a drawn time, then hands in a group; one outstanding `acquire` for its free slots."""

    def run(self, buffer: Buffer, rank: int, mean: float, payload: bytes) -> float:
        """Sample until the buffer stops; seconds of slot time used."""
        times = durations(mean, random.Random(rank))
        buffer.register(rank)
        running: list[tuple[float, int, Any, float]] = []
        asked: Any = None
        puts: list[Any] = []
        used, version, number = 0.0, -1, itertools.count()
        while True:
            if asked is None and len(running) < SLOTS:
                asked = buffer.acquire_ref(rank, SLOTS - len(running), 30.0, version)
            wait = max(0.0, running[0][0] - time.monotonic()) if running else 30.0
            if asked is None:
                time.sleep(wait)
            elif ray.wait([asked], timeout=wait)[0]:
                acquired = Buffer.result(asked, "acquiring work")
                asked, version = None, acquired.version
                if acquired.stop:
                    return used
                for ticket in acquired.tickets:
                    seconds = next(times)
                    heapq.heappush(running, (time.monotonic() + seconds, next(number), ticket, seconds))
            while running and running[0][0] <= time.monotonic():
                _, _, ticket, seconds = heapq.heappop(running)
                used += seconds
                held = [Span("sampler", "generate", 0.0, seconds)]
                group = Group(
                    ticket.group_id, [1.0], [1], [1], [False], ticket.version, spans=held, payload=payload
                )
                puts.append(buffer.put_ref(rank, [group]))
            puts = [ref for ref in puts if not ray.wait([ref], timeout=0)[0]]


def overlap(staleness: int, share: float, steps: int, step_seconds: float) -> dict[str, float]:
    """Train `steps` simulated steps; step seconds measured, ideal, and their ratio."""
    config = BufferConfig(
        groups_per_step=GROUPS, capacity=8 * GROUPS, max_staleness=staleness, samplers=SAMPLERS
    )
    buffer = Buffer.create(config)
    buffer.publish(0, None)
    samplers = [SimulatedSampler.remote() for _ in range(SAMPLERS)]
    mean = step_seconds * SAMPLERS * SLOTS / GROUPS
    runs = [sampler.run.remote(buffer, rank, mean, b"x" * 20_000) for rank, sampler in enumerate(samplers)]
    learner_seconds = share * step_seconds
    held, begin = 0.0, 0.0
    for step in range(steps + SKIPPED):
        batch = buffer.take(timeout=120)
        if step >= SKIPPED:
            held += sum(span.end for group in batch.groups for span in group.spans)
        time.sleep(learner_seconds)
        metrics = buffer.finish_step(step, step + 1, None)
        if step == SKIPPED - 1:
            begin = time.monotonic()
    seconds = (time.monotonic() - begin) / steps
    buffer.stop()
    ray.get(runs, timeout=60)
    for actor in (*samplers, buffer.actor):
        ray.kill(actor)
    ideal = max(held / (SAMPLERS * SLOTS) / steps, learner_seconds)
    return {
        "step": seconds,
        "ideal": ideal,
        "ratio": seconds / ideal,
        "staleness": metrics["max_staleness_seen"],
    }


@ray.remote(num_cpus=0)
class SimulatedProducer:
    """A sampler that finishes an item per slot and drawn time, plus tool latency; full channel: its slots wait."""

    def run(self, channel: Channel, seed: int, slots: int, mean: float, tool: float, seconds: float) -> int:
        """Items put within `seconds`."""
        rng = random.Random(seed)
        times = durations(mean, rng)

        def drawn() -> float:
            return next(times) + (rng.expovariate(1 / tool) if tool else 0.0)

        now = time.monotonic()
        end, item, count = now + seconds, {"data": rng.randbytes(150)}, 0
        running = [now + rng.random() * drawn() for _ in range(slots)]
        heapq.heapify(running)
        while time.monotonic() < end:
            if (wait := running[0] - time.monotonic()) > 0:
                time.sleep(wait)
            while running[0] <= time.monotonic():
                try:
                    channel.put(item, timeout=2.0)
                except DeadlineExceeded:
                    continue
                count += 1
                heapq.heapreplace(running, time.monotonic() + drawn())  # a slot that waited starts later
        channel.flush()
        return count


@ray.remote(num_cpus=0)
class SimulatedLearner:
    """Takes batches, sleeps for a step, and pauses now and then."""

    def run(self, channel: Channel, batch: int, step: float, every: float, pause: float) -> int:
        """Items taken until the channel is closed."""
        count, paused = 0, time.monotonic()
        try:
            while True:
                items = channel.get_many(batch, timeout=60, least=batch)
                count += len(items)
                time.sleep(step)
                if time.monotonic() - paused > every:
                    time.sleep(pause)
                    paused = time.monotonic()
        except ChannelClosed:
            return count


def capacity_study(capacity: int, tool: float, seconds: float) -> dict[str, Any]:
    """One run: items per second, and the fill over time as `[(seconds, items)]`."""
    channel = Channel.create(f"study {capacity}", capacity=capacity)
    producers = [SimulatedProducer.remote() for _ in range(2)]
    learner = SimulatedLearner.remote()
    batch = min(256, capacity // 2)
    # The learner could take 3,400 items/s without its pauses, the samplers make 3,200 without tools.
    taken = learner.run.remote(channel, batch, batch / 3400, seconds / 4, seconds / 10)
    begin = time.monotonic()
    made = [
        producer.run.remote(channel, seed, 160, 0.1, tool, seconds) for seed, producer in enumerate(producers)
    ]
    fill = []
    while len(ray.wait(made, num_returns=len(made), timeout=0.05)[0]) < len(made):
        fill.append((time.monotonic() - begin, channel.size()))
    total = sum(ray.get(made))
    elapsed = time.monotonic() - begin
    channel.close()
    ray.get(taken, timeout=120)
    for actor in (*producers, learner, channel.actor):
        ray.kill(actor)
    return {
        "items_per_second": total / elapsed,
        "fill": fill,
        "mean_fill": sum(size for _, size in fill) / max(1, len(fill)),
    }


def plot_staleness(results: dict[tuple[int, float], dict[str, float]]) -> None:
    """Step time over the ideal, by staleness."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    width = 0.8 / len(LEARNER_SHARES)
    for index, share in enumerate(LEARNER_SHARES):
        positions = [place + (index - 1) * width for place in range(len(STALENESS))]
        ratios = [results[staleness, share]["ratio"] for staleness in STALENESS]
        bars = axes.bar(positions, ratios, width * 0.9, label=f"learner {share:g} x sampler")
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(STALENESS)), [f"maxStaleness {value}" for value in STALENESS])
    axes.set_ylabel("step time / ideal")
    axes.legend(frameon=False)
    figure.savefig(table.RESULTS / "overlap-staleness.png", dpi=150)
    pyplot.close(figure)


def plot_capacity(results: dict[int, dict[str, Any]], title: str, name: str) -> None:
    """Fill over time for each capacity, and the throughput."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), width_ratios=[2, 1], layout="constrained")
    for capacity, result in results.items():
        left.plot(
            [at for at, _ in result["fill"]],
            [100 * size / capacity for _, size in result["fill"]],
            label=f"capacity {capacity:,}",
        )
    left.set(xlabel="seconds", ylabel="fill, % of capacity", ylim=(-3, 103), title=title)
    left.legend(frameon=False)
    bars = right.bar(
        [f"{capacity:,}" for capacity in results], [r["items_per_second"] for r in results.values()]
    )
    right.bar_label(bars, fmt="%.0f", fontsize=8)
    right.set(xlabel="capacity, items", ylabel="items/s")
    figure.savefig(table.RESULTS / name, dpi=150)
    pyplot.close(figure)


def main() -> int:
    """Measure, print, plot; the exit status says whether the target was reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--study-seconds", type=float, default=8.0)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    table.RESULTS.mkdir(parents=True, exist_ok=True)
    with ray_session(4):
        return 0 if measure(options) else 1


def measure(options: argparse.Namespace) -> bool:
    """Overlap, then the studies; True when the target was reached."""
    results, rows, checks = {}, [], []
    for staleness, share in itertools.product(STALENESS, LEARNER_SHARES):
        steps = options.steps if staleness else max(5, options.steps // 3)
        result = overlap(staleness, share, steps, options.step_seconds)
        results[staleness, share] = result
        rows.append([f"maxStaleness {staleness}, learner {share:g} x sampler", *result.values()])
        print(f"{rows[-1][0]}: {result['ratio']:.3f} of the ideal", flush=True)
        if staleness == 4:
            checks.append(table.at_most(f"{rows[-1][0]}: step time over the ideal", result["ratio"], 1.05))
        if result["staleness"] > staleness:
            checks.append(table.at_most("staleness seen", result["staleness"], staleness, ""))
    plot_staleness(results)
    columns = ["simulated run", "step s", "ideal s", "ratio", "staleness seen"]
    passed = table.report("overlap", columns, rows, checks=checks)

    rows = []
    for tool, title, name in (
        (0.0, "no tool latency", "capacity.png"),
        (0.1, "tool latency, exponential, mean 100 ms", "capacity-tool-latency.png"),
    ):
        study = {capacity: capacity_study(capacity, tool, options.study_seconds) for capacity in CAPACITIES}
        plot_capacity(study, title, name)
        rows += [
            [f"capacity {capacity:,}, {title}", result["items_per_second"], result["mean_fill"] / capacity]
            for capacity, result in study.items()
        ]
    table.report("capacity", ["channel", "items/s", "mean fill"], rows)
    return passed


if __name__ == "__main__":
    sys.exit(main())
