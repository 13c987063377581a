"""A thousand simulated samplers and 64 simulated ranks at one buffer, against two bare Ray queues in the same run.

    python bench/scale.py [--samplers 1000] [--ranks 64] [--groups-per-step 512] [--seconds 10] [--repetitions 3]

Samplers are asyncio tasks in a few processes: ask for a ticket, "generate" (wait), hand a group of 8 answers in. The driver
takes batches, deals them over the ranks (`learner/share.py`), whose tasks fetch and unpack their groups, and ends the step,
which may publish a version. The queues carry the same: one tickets out, one groups in, with neither leases nor versions nor
a bound on staleness but the number of tickets that are out.

The buffer is measured twice: with a version after each step, which every sampler gets (`rltrain`), and without any, as the
queues carry none (`rltrain, no weights`).

Full speed: nobody waits between two calls; groups/s, and processor seconds of the buffer's process (of both queues') per
1,000 groups. Latency is compared at the same load, half of what the queues carry: `acquire` is the call of a sampler that
brought a ticket, `take` the time from when there was both a driver that asked and the batch's last group (its `put` began)
to the batch's arrival. Contenders take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import ray
import table
from channel_items import percentiles
from ray.util.queue import Empty, Queue

from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.handle import CONCURRENT_CALLS, Buffer
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.learner.plan import plan_update
from rl_trainer.learner.share import Share, deal
from rl_trainer.run.ray_session import ray_session
from rl_trainer.trajectory import Group, Trajectory, unpack

STALENESS = 2  # versions; so many steps' groups, and one step's more, may be under way
MEMBERS, PROMPT, ANSWER = 8, 64, 64
WAIT = 60.0  # seconds that anything may take


@dataclass(frozen=True)
class Size:
    """How large a measurement is; in how many processes samplers and ranks are."""

    samplers: int = 1000
    ranks: int = 64
    groups_per_step: int = 512
    processes: int = 4
    rank_processes: int = 2


@dataclass
class Found:
    """What one measurement gave: times in seconds, ids of the groups in the order in which they were taken."""

    groups_per_second: float
    cpu_per_1000: float
    acquire: list[float]
    take: list[float]
    ids: list[int] = field(default_factory=list)


class OurLink:
    """The buffer, as samplers and the driver use it."""

    def __init__(self, size: Size, publishes: bool = True) -> None:
        self.publishes = publishes
        capacity = size.groups_per_step * (STALENESS + 1)
        config = BufferConfig(size.groups_per_step, capacity, STALENESS, samplers=size.samplers)
        # Without new versions, capacity bounds what is under way instead of staleness.
        self.buffer = Buffer.create(config if publishes else replace(config, steps_per_version=10**9))
        self.actors = [self.buffer.actor]

    def start(self) -> None:
        self.buffer.publish(0, [ray.put(b"weights")])

    async def join(self, sampler: int) -> None:
        await self.buffer.actor.register.remote(sampler)

    async def ticket(self, sampler: int, known: int) -> tuple[int | None, int, bool]:
        """Group id if there is one, the version that is known then, and whether it is over."""
        acquired = await self.buffer.acquire_ref(sampler, 1, WAIT, known)
        version = acquired.version if acquired.weights is not None else known
        return (acquired.tickets[0].group_id if acquired.tickets else None), version, acquired.stop

    async def hand_in(self, sampler: int, group: Group) -> None:
        await self.buffer.put_ref(sampler, [group])

    def take(self) -> list[Group]:
        return self.buffer.take(WAIT).groups

    def finish(self, step: int) -> None:
        version, weights = (step + 1, [ray.put(b"weights")]) if self.publishes else (None, None)
        self.buffer.finish_step(step, version, weights)

    def stop(self) -> None:
        self.buffer.stop()


class RayLink:
    """Two `ray.util.queue.Queue`."""

    def __init__(self, size: Size) -> None:
        self.size = size
        # With Ray's own 1,000 calls at a time, a thousand waiting samplers would keep the driver's tickets out.
        options = {"num_cpus": 0, "max_concurrency": CONCURRENT_CALLS}
        self.tickets, self.groups = Queue(actor_options=options), Queue(actor_options=options)
        self.actors = [self.tickets.actor, self.groups.actor]

    def start(self) -> None:
        self.tickets.put_nowait_batch(list(range(self.size.groups_per_step * (STALENESS + 1))))

    async def join(self, sampler: int) -> None:
        pass

    async def ticket(self, sampler: int, known: int) -> tuple[int | None, int, bool]:
        group_id = await self.tickets.actor.get.remote(WAIT)
        return (None, known, True) if group_id < 0 else (group_id, known, False)

    async def hand_in(self, sampler: int, group: Group) -> None:
        await self.groups.actor.put.remote(group)

    def take(self) -> list[Group]:
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            try:
                return list(self.groups.get_nowait_batch(self.size.groups_per_step))
            except Empty:
                time.sleep(0.002)
        raise TimeoutError(f"no batch from the Ray queue within {WAIT:.0f} s")

    def finish(self, step: int) -> None:
        first = self.size.groups_per_step * (STALENESS + 1 + step)
        self.tickets.put_nowait_batch(list(range(first, first + self.size.groups_per_step)))

    def stop(self) -> None:
        self.tickets.put_nowait_batch([-1] * self.size.samplers)


@ray.remote(num_cpus=0)
class Samplers:
    """One process with some of the samplers."""

    async def run(self, link: Any, samplers: Sequence[int], think: float, seed: int) -> list[float]:
        """Samples until it is over; seconds of each call that brought a ticket, from the second on."""
        rng = np.random.default_rng(seed)
        answers = [answer(rng) for _ in range(MEMBERS)]
        times: list[float] = []
        await asyncio.gather(*(link.join(sampler) for sampler in samplers))
        await asyncio.gather(*(self._sample(link, one, think, answers, rng, times) for one in samplers))
        return times

    async def _sample(
        self, link: Any, sampler: int, think: float, answers: list[Trajectory], rng: Any, times: list[float]
    ) -> None:
        known, first = -1, True
        packed = Group.of(0, answers)
        while True:
            asked = time.monotonic()
            group_id, known, over = await link.ticket(sampler, known)
            if over:
                return
            if group_id is None:
                continue
            if not first:
                times.append(time.monotonic() - asked)
            first = False
            if think:
                await asyncio.sleep(rng.uniform(0.5, 1.5) * think)
            versions = max(known, 0)
            await link.hand_in(
                sampler, replace(packed, group_id=group_id, min_version=versions, priority=time.monotonic())
            )


@ray.remote(num_cpus=0)
class Ranks:
    """One process with some of the ranks."""

    async def fetch(self, shares: list[Share]) -> int:
        """Every rank fetches and unpacks its groups; the trajectories that they have."""
        return sum(await asyncio.gather(*(asyncio.to_thread(fetched, share) for share in shares)))


def fetched(share: Share) -> int:
    """Trajectories of a share, whose payloads are here then."""
    groups = [unpack(payload) for payload in fetch_payloads(share.payloads)]
    return sum(len(groups[place]) > 0 for part in share.selections for place in part.groups)


def answer(rng: Any) -> Trajectory:
    """One made-up answer."""
    length = PROMPT + ANSWER
    return Trajectory(
        rng.integers(0, 50_000, length).astype(np.int32),
        np.arange(length) >= PROMPT,
        rng.normal(-1, 1, ANSWER).astype(np.float32),
        np.zeros(ANSWER, np.int32),
    )


def measure(link: Any, size: Size, seconds: float, think: float = 0.0) -> Found:
    """One measurement with a fresh `link`; samplers and ranks come and go with it."""
    samplers = [Samplers.remote() for _ in range(size.processes)]
    ranks = [Ranks.remote() for _ in range(size.rank_processes)]
    link.start()
    running = [
        one.run.remote(link, range(index, size.samplers, size.processes), think, index)
        for index, one in enumerate(samplers)
    ]
    take, ids = [], []
    begin, spent, taken = 0.0, 0.0, 0
    warm = STALENESS + 1  # steps whose groups may be under way from the start
    for step in itertools.count():
        if step == warm:
            begin, spent, taken = time.monotonic(), processor_seconds(link), len(ids)
        elif step > warm and time.monotonic() - begin >= seconds:
            break
        asked = time.monotonic()
        groups = link.take()
        if step >= warm:
            take.append(time.monotonic() - max(asked, *(group.priority for group in groups)))
        ids += [group.group_id for group in groups]
        trained = ray.get(
            [one.fetch.remote(shares) for one, shares in zip(ranks, dealt(groups, size), strict=True)]
        )
        assert sum(trained) == MEMBERS * len(groups), "every trajectory is on one rank"
        link.finish(step)
    wall, spent, count = time.monotonic() - begin, processor_seconds(link) - spent, len(ids) - taken
    link.stop()
    acquire = [one for times in ray.get(running, timeout=2 * WAIT) for one in times]
    for actor in [*samplers, *ranks, *link.actors]:
        ray.kill(actor)
    return Found(count / wall, 1000 * spent / count, acquire, take, ids)


def dealt(groups: Sequence[Group], size: Size) -> list[list[Share]]:
    """The shares of all ranks, by process."""
    lengths = [group.total_lengths for group in groups]
    advantages = [0.0] * sum(map(len, lengths))
    plan = plan_update(lengths, [group.lengths for group in groups], advantages, ranks=size.ranks)
    chosen = [[part.ranks[rank] for part in plan] for rank in range(size.ranks)]
    shares = deal([group.payload for group in groups], chosen, put=ray.put)
    return [shares[index :: size.rank_processes] for index in range(size.rank_processes)]


def processor_seconds(link: Any) -> float:
    """Of the processes of the buffer, or of the queues, since they began."""
    calls = [actor.__ray_call__.remote(lambda _: time.process_time()) for actor in link.actors]
    return float(sum(ray.get(calls, timeout=WAIT)))


def main() -> int:
    """Measure, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samplers", type=int, default=Size.samplers)
    parser.add_argument("--ranks", type=int, default=Size.ranks)
    parser.add_argument("--groups-per-step", type=int, default=Size.groups_per_step)
    parser.add_argument("--processes", type=int, default=Size.processes, help="of the samplers")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    table.add_out(parser)
    options = parser.parse_args()
    size = Size(options.samplers, options.ranks, options.groups_per_step, options.processes)
    contenders: dict[str, Callable[[Size], Any]] = {
        "rltrain": OurLink,
        "rltrain, no weights": partial(OurLink, publishes=False),
        "ray queues": RayLink,
    }
    full: dict[str, list[Found]] = {name: [] for name in contenders}
    calm: dict[str, list[Found]] = {name: [] for name in contenders}
    with ray_session(4):
        for _ in range(options.repetitions):
            for name, link in contenders.items():
                full[name].append(measure(link(size), size, options.seconds))
                print(f"{name}: {full[name][-1].groups_per_second:,.0f} groups/s", flush=True)
        load = statistics.median(one.groups_per_second for one in full["ray queues"]) / 2
        for _ in range(options.repetitions):
            for name, link in contenders.items():
                calm[name].append(measure(link(size), size, options.seconds, think=size.samplers / load))
    rows = [
        [
            name,
            table.spread([one.groups_per_second for one in full[name]]),
            table.spread([one.cpu_per_1000 for one in full[name]]),
            table.spread([one.groups_per_second for one in calm[name]]),
            *(
                table.spread([percentiles(getattr(one, call))["p99"] for one in calm[name]])
                for call in ("acquire", "take")
            ),
        ]
        for name in contenders
    ]
    columns = [
        f"{size.samplers} samplers, {size.ranks} ranks",
        "groups/s",
        "CPU s per 1,000 groups",
        "groups/s, calm",
        "acquire p99 ms, calm",
        "take p99 ms, calm",
    ]
    table.report("scale", columns, rows, out=options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
