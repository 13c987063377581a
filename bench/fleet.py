"""A fleet under queues: the real operator, Kueue and API server, 2,000 nodes of kwok's with 8 accelerators each.

    python bench/fleet.py [--runs 1000 --namespaces 50 --nodes 2000 --urgent 100 --seed 1] [--modes plain workload]

Each of the namespaces has a queue with its share of the accelerators, which its runs take whole (16 each: four learners,
three samplers of 4). All runs are applied at once, over 32 connections. When all are at work, urgent runs arrive one after
another in namespaces drawn by chance; each takes the quota of one that was there. KubeRay is played: a RayJob that may run
gets its RayCluster and pods, which kwok says are ready; drivers train, and write a checkpoint when they are asked for one.

The peer is as many RayJobs as a person would write them, with a queue's label: the same pods, nobody but Kueue before them.

Measured: from the answer to a creation until the sight of its admission, and of its RayJob that may run; of urgent ones
the same; from the sight of an eviction to the driver's receipt of the request for a checkpoint; calls and memory of the
operator.
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
from collections.abc import Callable
from pathlib import Path
from typing import Final

import kube_load
import table
from fleet_cluster import CONNECTIONS, JSON, PLAYERS, QUEUE, URGENT, FleetCluster, Rays, equipped, until
from fleet_runs import Drivers, Fleet
from kube_load import RUNS, Client, cpu_seconds, peak_megabytes
from kueue_process import find_kueue
from operator_cluster import binaries_and_run, patience
from operator_load import percentile
from operator_process import WRITES, OperatorProcess

RATIO, REQUEST_SECONDS, MEGABYTES = 1.3, 3.0, 400.0
EVERY_SECONDS: Final = 0.5  # an urgent run
WORKLOADS: Final = "/apis/kueue.x-k8s.io/v1beta2/workloads"
RAY_JOBS: Final = "/apis/ray.io/v1/rayjobs"
MODES: Final = ("plain", "label", "workload")


def manifests(mode: str, run: JSON, job: JSON | None) -> Callable[[str, str], JSON]:
    """How a run, or its RayJob, is written, given its name and who goes first."""

    def plain(name: str, priority: str) -> JSON:
        assert job is not None
        labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": priority}
        about = {key: job[key] for key in ("apiVersion", "kind")}
        return {
            **about,
            "metadata": {"name": name, "labels": labels},
            "spec": job["spec"] | {"suspend": True},
        }

    def ours(name: str, priority: str) -> JSON:
        spec = {key: value for key, value in run["spec"].items() if key != "warmStart"}
        spec["learner"] = {"replicas": 4}
        sizes = {"replicas": 3, "minReplicas": 3, "resources": {"accelerators": 4}}
        spec["sampler"] = spec["sampler"] | sizes
        spec["checkpoint"] = {"storage": {"path": "/var/lib/checkpoints"}}
        spec["stop"] = {"maxSteps": 10**6}
        how = "label" if mode == "label" else "workload"
        spec["scheduling"] = {"queue": QUEUE, "integration": how, "workloadPriorityClass": priority}
        return {**run, "metadata": {"name": name}, "spec": spec}

    return plain if mode == "plain" else ours


async def measure(mode: str, args: argparse.Namespace, folder: Path, run: JSON, kept: JSON) -> JSON:
    """All figures of one way to queue; `kept` is what a later one needs of it."""
    drivers = Drivers()
    url = await drivers.start()
    tasks: list[asyncio.Task[None]] = []
    binary = find_kueue()
    assert binary is not None
    with contextlib.ExitStack() as stack:
        cluster = await asyncio.to_thread(
            stack.enter_context, FleetCluster(folder / mode, binary, args.namespaces, args.nodes)
        )
        client = cluster.client()
        operator: OperatorProcess | None = None
        try:
            print(f"{mode}: adding {args.nodes} nodes", file=sys.stderr, flush=True)
            nodes = await cluster.add_nodes(client)
            if mode != "plain":
                operator = await asyncio.to_thread(cluster.operator, url)
            fleet = Fleet(client, manifests(mode, run, kept.get("job")), mode == "plain", drivers)
            rays = Rays(client, nodes, fleet.begun)
            await client.watch(RAY_JOBS, fleet.saw_job, whole=True)
            await client.watch(RAY_JOBS, rays.saw, whole=True)
            await client.watch(WORKLOADS, fleet.saw_workload, whole=True)
            tasks += [asyncio.create_task(rays.play()) for _ in range(PLAYERS)]
            return await _all(mode, args, cluster, client, fleet, rays, drivers, operator, tasks, kept)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            if operator is not None:
                operator.kill()
            await drivers.stop()


async def _all(
    mode: str,
    args: argparse.Namespace,
    cluster: FleetCluster,
    client: Client,
    fleet: Fleet,
    rays: Rays,
    drivers: Drivers,
    operator: OperatorProcess | None,
    tasks: list[asyncio.Task[None]],
    kept: JSON,
) -> JSON:
    watched = [*tasks, *client.watches]
    await _warm_up(cluster, client, fleet, drivers, watched, kept)
    names = [(cluster.namespaces[n % args.namespaces], f"run-{n:04d}") for n in range(args.runs)]
    calls, looks = (operator.calls(), operator.looks) if operator is not None else ({}, 0)
    programs = cluster.programs | ({"operator": operator.pid} if operator is not None else {})
    before = {name: cpu_seconds(pid) for name, pid in programs.items()}
    started = time.monotonic()
    applying = asyncio.create_task(
        kube_load.bounded(CONNECTIONS, [lambda one=one: fleet.apply(*one) for one in names])
    )

    def state() -> str:
        seen = (fleet.created, fleet.admitted, fleet.jobs, drivers.born)
        applied, admitted, jobs, trained = map(len, seen)
        return f"{mode}: {applied} applied, {admitted} admitted, {jobs} RayJobs, {trained} train, {rays.pods} pods"

    await until(lambda: len(fleet.jobs) >= args.runs, state, patience(args.runs), watched)
    await applying
    await until(lambda: len(drivers.born) >= args.runs, state, patience(args.runs), watched)
    found: JSON = {
        "mode": mode,
        "runs": args.runs,
        "applying": max(fleet.created.values()) - started,
        "seconds": max(fleet.jobs.values()) - started,
        "at work": max(drivers.born.values()) - started,
        "admitted": fleet.since(names, fleet.admitted),
        "jobs": fleet.since(names, fleet.jobs),
        "cpu": {name: cpu_seconds(pid) - before[name] for name, pid in programs.items()},
        "pods": rays.pods,
    }
    if operator is not None:
        after = operator.calls()
        found["looks"] = operator.looks - looks
        counts = {what: n - calls.get(what, 0) for what, n in after.items()}
        found["calls"] = {f"{verb} {kind}": n for (verb, kind), n in counts.items() if n}
        await _until_trains(client, args.runs, mode)
    await _urgent(args, cluster, fleet, drivers, watched, found)
    if operator is not None:
        found["memory"] = peak_megabytes(operator.pid)
    return found


async def _until_trains(client: Client, runs: int, mode: str) -> None:
    """Wait until the operator has heard of all drivers: of one that does not train it asks for no checkpoint."""
    deadline, trains = time.monotonic() + patience(runs), 0
    while trains < runs:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{mode}: by their status {trains} of {runs} runs train")
        await asyncio.sleep(2.0)
        items = json.loads(await client.send("GET", f"{RUNS}/rltrainingruns"))["items"]
        trains = [item.get("status", {}).get("phase") for item in items].count("Training")


async def _warm_up(
    cluster: FleetCluster,
    client: Client,
    fleet: Fleet,
    drivers: Drivers,
    watched: list[asyncio.Task[None]],
    kept: JSON,
) -> None:
    """One before those that are measured: at its first RayJob the API server reads the definition."""
    namespace = cluster.namespaces[0]
    place = namespace, "warm-up"
    await fleet.apply(*place)
    await until(lambda: place in drivers.born, lambda: "the first is not at work", patience(1), watched)
    jobs = json.loads(await client.send("GET", RAY_JOBS))["items"]
    kept["job"] = jobs[0]
    # Nobody collects here what belongs to something that is gone.
    jobs_there = RAY_JOBS.replace("v1/", f"v1/namespaces/{namespace}/")
    workloads = WORKLOADS.replace("v1beta2/", f"v1beta2/namespaces/{namespace}/")
    runs = f"{RUNS}/namespaces/{namespace}/rltrainingruns"
    await client.send("DELETE", runs)
    await client.send("DELETE", jobs_there)
    left = ["the first run"]
    deadline = time.monotonic() + patience(1)
    while left:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not gone after {patience(1):.0f} s: {', '.join(left)}")
        await asyncio.sleep(0.2)
        left = []
        for path in (runs, workloads):
            left += [one["metadata"]["name"] for one in json.loads(await client.send("GET", path))["items"]]
        if left:
            await client.send("DELETE", workloads)
    for seen in (fleet.created, fleet.admitted, fleet.jobs, fleet.evicted, drivers.born, drivers.asked):
        seen.pop(place, None)


async def _urgent(
    args: argparse.Namespace,
    cluster: FleetCluster,
    fleet: Fleet,
    drivers: Drivers,
    watched: list[asyncio.Task[None]],
    found: JSON,
) -> None:
    """Urgent runs, one after another, each of which takes another one's quota."""
    chance = random.Random(args.seed)
    names = [(chance.choice(cluster.namespaces), f"urgent-{number:04d}") for number in range(args.urgent)]

    def state() -> str:
        begun = sum(name in fleet.jobs for name in names)
        return f"{found['mode']}: {len(fleet.evicted)} evicted, {len(drivers.asked)} asked, {begun} urgent RayJobs"

    for name in names:
        await fleet.apply(*name, URGENT)
        await asyncio.sleep(EVERY_SECONDS)
    await until(lambda: all(name in fleet.jobs for name in names), state, patience(args.runs), watched)
    victims = [name for name in fleet.evicted if name in fleet.created]
    asked = [drivers.asked[name] - fleet.evicted[name] for name in victims if name in drivers.asked]
    found["urgent"] = fleet.since(names, fleet.jobs)
    found["evicted"] = len(victims)
    found["requests"] = {"latencies": sorted(max(0.0, value) for value in asked)}


def per_run(found: JSON, verbs: tuple[str, ...]) -> float:
    """Calls of the operator per run."""
    return sum(n for what, n in found["calls"].items() if what.split()[0] in verbs) / int(found["runs"])


def show(results: list[JSON], out: Path) -> bool:
    """The table and the targets."""
    columns = ["way", "runs"]
    columns += [f"{what} {p}, s" for what in ("admitted", "RayJob") for p in ("p50", "p99")]
    columns += [
        "all, s",
        "at work, s",
        "urgent p50, s",
        "urgent p99, s",
        "evicted",
        "asked p50, s",
        "asked p99, s",
    ]
    columns += ["writes", "reads", "looks", "MB"]
    rows, checks = [], []
    plain = next((found for found in results if found["mode"] == "plain"), None)
    for found in results:
        ours = found["mode"] != "plain"
        asked = found["requests"] if found["requests"]["latencies"] else None
        rows.append(
            [
                found["mode"],
                found["runs"],
                *(round(percentile(found[what], p), 2) for what in ("admitted", "jobs") for p in (50, 99)),
                round(found["seconds"], 1),
                round(found["at work"], 1),
                *(round(percentile(found["urgent"], p), 2) for p in (50, 99)),
                found["evicted"],
                *(round(percentile(asked, p), 3) if asked else "" for p in (50, 99)),
                *(round(per_run(found, verbs), 1) if ours else "" for verbs in (WRITES, ("get", "list"))),
                round(found["looks"] / found["runs"], 1) if ours else "",
                round(found["memory"]) if ours else "",
            ]
        )
        if not ours:
            continue
        name = found["mode"]
        checks.append(
            table.at_most(f"{name}: most memory of the operator", found["memory"], MEGABYTES, " MB")
        )
        if plain is not None:
            ratio = found["seconds"] / plain["seconds"]
            checks.append(table.at_most(f"{name}: all RayJobs, against plain ones", ratio, RATIO))
        if name == "workload":
            asked_of = len(found["requests"]["latencies"]) / max(found["evicted"], 1)
            checks.append(table.at_least(f"{name}: evicted runs that were asked", asked_of, 1.0, ""))
            if asked:
                p99 = percentile(asked, 99)
                checks.append(table.at_most(f"{name}: eviction to request p99", p99, REQUEST_SECONDS, " s"))
    for found in results:
        spent = ", ".join(f"{name} {value:.1f} s" for name, value in found["cpu"].items())
        print(
            f"{found['mode']}: applied within {found['applying']:.1f} s, {found['pods']:,} pods; CPU: {spent}"
        )
        if "calls" in found:
            print(
                f"{found['mode']}: "
                + ", ".join(f"{what} {n:,}" for what, n in sorted(found["calls"].items()))
            )
    return table.report("fleet", columns, rows, {"results": results}, checks, out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--namespaces", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument(
        "--urgent", type=int, default=100, help="runs that arrive when all others are at work"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the namespaces in which they do")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["plain", "workload"])
    table.add_out(parser)
    args = parser.parse_args()
    if set(args.modes) == {"plain"}:
        parser.error("--modes: found plain alone, allowed: beside label or workload, whose RayJob it takes")
    found = binaries_and_run("fleet")
    if found is None:
        return 2
    if not equipped("fleet"):
        return 2
    kept: JSON = {}
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
        # What a plain RayJob looks like is known from one that the operator made.
        modes = sorted(args.modes, key=lambda mode: -MODES.index(mode))
        results = [asyncio.run(measure(mode, args, Path(folder), found[1], kept)) for mode in modes]
    return 0 if show(results, args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
