"""Urgent runs that arrive over three long ones: what training they cost, with the priority boost and without.

    python bench/arrivals.py [--arrivals 50 --seed 1 --scale 12]

The real operator, Kueue and API server; KubeRay, nodes and drivers are played, as in bench/fleet.py. A queue has room for
the three long runs, which enter it in an order drawn by chance. They differ in what an eviction costs: one writes a
checkpoint when it is asked and is back at once; one writes some of its own accord and needs a while to start; one writes few
and needs long. Urgent runs arrive and end at times drawn by chance, the same with Kueue's gate `PriorityBoost` and without;
each takes the quota of a long run when there is no other.

All seconds below are multiplied by --scale. The operator writes a boost once a minute at most, so that a run which is back
within a minute of its eviction has none yet, and is evicted again: with a scale of 1 this is all that is seen.

Lost is what the drivers know of: work since the checkpoint that a run goes on from, and the seconds of its start. A run
starves that trains for less than a tenth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import table
from aiohttp import web
from fleet import manifests
from fleet_cluster import JSON, LONG, PLAYERS, URGENT, FleetCluster, Rays, equipped, until
from kube_load import RUNS
from kueue_process import find_kueue
from operator_cluster import binaries_and_run, patience

ARMS: Final = {"without boost": False, "with boost": True}
AT_MOST, AT_LEAST = 0.5, 0.1
GAP_SECONDS, LONGEST_SECONDS = 6.0, 3.0


@dataclass(frozen=True)
class Kind:
    """What a long run is like."""

    start: float
    """Seconds from its pods to its training."""
    every: float
    """Seconds between checkpoints of its own accord."""
    asked: bool
    """Whether it writes one when it is asked."""

    def scaled(self, scale: float) -> Kind:
        """The same with other seconds."""
        return Kind(self.start * scale, self.every * scale, self.asked)


KINDS: Final = {
    "long-cheap": Kind(1.0, 2.0, True),
    "long-middle": Kind(4.0, 10.0, False),
    "long-dear": Kind(8.0, 60.0, False),
}


class Long:
    """The driver of a long run, over all of its lives; training is counted in seconds."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.saved, self.lost, self.lives = 0.0, 0.0, 0
        self._since: float | None = None
        self._kept = 0.0

    def begins(self) -> None:
        if self.lives:
            self.lost += self.kind.start
        self.lives += 1
        self._since, self._kept = time.monotonic() + self.kind.start, self.saved

    def ends(self) -> None:
        """Its pods go: what is in no checkpoint is lost."""
        trained = self.trained
        self._checkpoint()
        self.lost += trained - self.saved
        self._since, self._kept = None, self.saved

    def is_asked(self) -> bool:
        if self.kind.asked and self.trains:
            self.saved = self.trained
        return self.kind.asked

    @property
    def trains(self) -> bool:
        return self._since is not None and time.monotonic() >= self._since

    @property
    def trained(self) -> float:
        """Seconds of training, kept or not."""
        return self._kept + (max(0.0, time.monotonic() - self._since) if self._since is not None else 0.0)

    def status(self) -> JSON:
        self._checkpoint()
        said: JSON = {"phase": "Training", "step": int(self.trained * 10), "maxSteps": 10**6, "reward": 0.5}
        if self.saved:
            step = int(self.saved * 10)
            said["checkpoint"] = {"step": step, "uri": f"file:///checkpoints/{step}"}
        return said

    def _checkpoint(self) -> None:
        self.saved = max(self.saved, self.trained // self.kind.every * self.kind.every)


class Arrivals:
    """The drivers of all runs, and when the urgent ones end."""

    def __init__(self, seed: int, count: int, scale: float) -> None:
        chance = random.Random(seed)
        self.order = chance.sample(list(KINDS), len(KINDS))
        self.gaps = [scale * chance.expovariate(1 / GAP_SECONDS) for _ in range(count)]
        self.durations = [scale * chance.uniform(1.0, LONGEST_SECONDS) for _ in range(count)]
        self.long = {name: Long(kind.scaled(scale)) for name, kind in KINDS.items()}
        self.running: set[str] = set()
        self.done: set[str] = set()
        self.rays: Rays | None = None
        self._runner: web.AppRunner | None = None
        self.watched: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{namespace}/{run}/{what}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/{{namespace}}/{{run}}"

    async def stop(self) -> None:
        for task in self.watched:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    def begun(self, namespace: str, job: str) -> None:
        """The pods of a RayJob are there."""
        run = job.rpartition("-")[0]
        if run in self.long:
            self.long[run].begins()
        elif run.startswith("urgent"):
            self.running.add(run)
            self.watched.append(asyncio.create_task(self._end(namespace, job, run)))

    def ended(self, _: str, job: str) -> None:
        """The pods of a RayJob are told to go."""
        run = job.rpartition("-")[0]
        if run in self.long:
            self.long[run].ends()
        self.running.discard(run)

    async def _end(self, namespace: str, job: str, run: str) -> None:
        await asyncio.sleep(self.durations[int(run.rpartition("-")[2])])
        assert self.rays is not None
        await self.rays.succeed((namespace, job))
        self.done.add(run)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        run, what = request.match_info["run"], request.match_info["what"]
        long = self.long.get(run)
        if run not in self.running and (long is None or not long.trains):
            raise web.HTTPServiceUnavailable
        if long is None:
            return web.json_response({"phase": "Training", "step": 1, "maxSteps": 10})
        if what == "checkpoint" and not long.is_asked():
            return web.json_response({"error": "it writes checkpoints of its own accord"}, status=409)
        return web.json_response(long.status())


async def measure(arm: str, args: argparse.Namespace, folder: Path, run: JSON) -> JSON:
    """What the arrivals cost, with Kueue's gate or without."""
    arrivals = Arrivals(args.seed, args.arrivals, args.scale)
    url = await arrivals.start()
    tasks: list[asyncio.Task[None]] = []
    binary = find_kueue()
    assert binary is not None
    with contextlib.ExitStack() as stack:
        # Each run takes 16 accelerators.
        gates = {"PriorityBoost": ARMS[arm]}
        cluster = await asyncio.to_thread(
            stack.enter_context,
            FleetCluster(folder / arm.replace(" ", "-"), binary, 1, 2 * len(KINDS), gates),
        )
        client = cluster.client()
        operator = await asyncio.to_thread(cluster.operator, url)
        try:
            nodes = await cluster.add_nodes(client)
            rays = arrivals.rays = Rays(client, nodes, arrivals.begun, arrivals.ended)
            await client.watch("/apis/ray.io/v1/rayjobs", rays.saw, whole=True)
            tasks += [asyncio.create_task(rays.play()) for _ in range(PLAYERS)]
            watched = arrivals.watched = [*tasks, *client.watches]
            namespace, write = cluster.namespaces[0], manifests("workload", run, None)

            async def apply(name: str, priority: str) -> None:
                where = f"{RUNS}/namespaces/{namespace}/rltrainingruns"
                await client.send("POST", where, json.dumps(write(name, priority)))

            def state() -> str:
                told = {
                    name: f"{one.lost:.0f} s lost, {one.trained:.0f} trained"
                    for name, one in arrivals.long.items()
                }
                return f"{arm}: {len(arrivals.done)} urgent done; {told}"

            for name in arrivals.order:
                await apply(name, LONG)
                one = arrivals.long[name]
                await until(lambda one=one: one.trains, state, patience(1) + one.kind.start, watched)
            started = time.monotonic()
            for number, gap in enumerate(arrivals.gaps):
                await asyncio.sleep(gap)
                await apply(f"urgent-{number:04d}", URGENT)
            limit = patience(args.arrivals) + args.arrivals * (args.scale * LONGEST_SECONDS + 5.0)
            await until(lambda: len(arrivals.done) == args.arrivals, state, limit, watched)
            await until(lambda: all(one.trains for one in arrivals.long.values()), state, limit, watched)
            took = time.monotonic() - started
            return {
                "arm": arm,
                "took": took,
                "long": {
                    name: {"lost": one.lost, "evictions": one.lives - 1, "share": one.trained / took}
                    for name, one in arrivals.long.items()
                },
            }
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            operator.kill()
            await arrivals.stop()


async def both(args: argparse.Namespace, folder: Path, run: JSON) -> list[JSON]:
    """What they cost without the gate and with it. Each way has a cluster of its own, and both are there at the same time:
    most of it is waiting, and what else the machine does falls on both."""
    tasks = [asyncio.create_task(measure(arm, args, folder, run)) for arm in ARMS]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def show(results: list[JSON], args: argparse.Namespace) -> bool:
    """The table and the targets."""
    columns = [
        "way",
        "took, s",
        "lost, s",
        *(f"{name}: evicted" for name in KINDS),
        "least share of time trained",
    ]
    lost = {found["arm"]: sum(one["lost"] for one in found["long"].values()) for found in results}
    least = {found["arm"]: min(one["share"] for one in found["long"].values()) for found in results}
    rows = [
        [
            found["arm"],
            round(found["took"]),
            round(lost[found["arm"]], 1),
            *(found["long"][name]["evictions"] for name in KINDS),
            round(least[found["arm"]], 2),
        ]
        for found in results
    ]
    without, boosted = ARMS
    checks = [
        table.at_most(
            "training lost with boost, of that without", lost[boosted] / max(lost[without], 1e-9), AT_MOST
        ),
        table.at_least("share of the time that the least trained run has", least[boosted], AT_LEAST, ""),
    ]
    meta = {"arrivals": args.arrivals, "seed": args.seed, "scale": args.scale, "results": results}
    return table.report("arrivals", columns, rows, meta, checks, args.out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arrivals", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=12.0, help="what all seconds are multiplied by")
    table.add_out(parser)
    args = parser.parse_args()
    found = binaries_and_run("arrivals")
    if found is None:
        return 2
    if not equipped("arrivals"):
        return 2
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
        results = asyncio.run(both(args, Path(folder), found[1]))
    return 0 if show(results, args) else 1


if __name__ == "__main__":
    sys.exit(main())
