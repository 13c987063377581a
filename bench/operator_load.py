"""The operator under load: a real kube-apiserver and etcd, the real operator as a process, no nodes.

    python bench/operator_load.py [1 100 1000 1000/kubectl 1000/1]

For each load a fresh cluster, in which one run was made before: at its first RayJob the API server reads the definition,
which takes it a second. All runs are applied at once: by `kubectl apply -f` of one file that holds them (1000/kubectl), or
over 32 connections that wait for each answer, or over one (1000/1). The latency of a run is the time from the answer to its
own creation (kubectl: the sight of it in a watch) to the sight of its RayJob in a watch.

The same with a bare operator, which issues the same writes from a template and decides nothing, gives the floor that this
API server sets on this machine: the ratio says what the operator adds. Then: calls per run, memory, processor time, a
resync that must write nothing, and a restart (kill -9) with a run created meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kube_load
import table
from kube_load import RUNS, Client, cpu_seconds, peak_megabytes
from operator_cluster import Cluster, binaries_and_run, patience
from operator_process import WRITES, OperatorProcess, Program

LATENCY_SECONDS, MEGABYTES, WRITES_PER_RUN = 2.0, 250.0, 12.0
CONNECTIONS, KUBECTL = 32, 0
ALONE = 20  # a single run is measured so often
QUIET_SECONDS = 3.0


class Load:
    """Runs that are applied and the RayJobs that appear."""

    def __init__(self, client: Client, run: dict[str, Any]) -> None:
        self.client, self.run = client, run
        self.created: dict[str, float] = {}
        self.jobs: dict[str, float] = {}
        self._news = asyncio.Event()

    def saw(self, change: str, metadata: dict[str, Any]) -> None:
        if change == "ADDED":
            name = str(metadata["name"]).rpartition("-")[0]
            self.jobs.setdefault(name, time.monotonic())
            self._news.set()

    def saw_run(self, change: str, metadata: dict[str, Any]) -> None:
        if change == "ADDED":
            self.created.setdefault(str(metadata["name"]), time.monotonic())

    async def apply_by_kubectl(self, cluster: Cluster, names: list[str]) -> None:
        """One file with all runs, as a person has it."""
        await self.client.watch(f"{RUNS}/rltrainingruns", self.saw_run)
        runs = [{**self.run, "metadata": {"name": name, "namespace": "default"}} for name in names]
        file = cluster.folder / "runs.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": runs}))
        await asyncio.to_thread(cluster.kube.kubectl, "apply", "-f", str(file), seconds=patience(len(names)))

    async def apply(self, name: str) -> None:
        run = {**self.run, "metadata": {"name": name}}
        await self.client.send("POST", f"{RUNS}/namespaces/default/rltrainingruns", json.dumps(run))
        self.created[name] = time.monotonic()

    async def take_up(self) -> None:
        """What KubeRay, which is not here, does first: after a minute without it every run's status says so, which would be
        counted as writes of a resync or of a restart."""
        where = "/apis/ray.io/v1/namespaces/default/rayjobs/{}-1/status"
        status, kind = (
            json.dumps({"status": {"jobDeploymentStatus": "Initializing"}}),
            "application/merge-patch+json",
        )
        work = [
            lambda name=name: self.client.send("PATCH", where.format(name), status, kind)
            for name in ("run-before", *self.jobs)
        ]
        await kube_load.bounded(CONNECTIONS, work)

    async def rendered(self, count: int, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + patience(count)
        while len(self.jobs) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self.jobs)} of {count} RayJobs after {patience(count):.0f} s")
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), 1.0)
            except TimeoutError:
                say(f"{len(self.created)} runs applied, {len(self.jobs)} RayJobs")

    def latencies(self) -> list[float]:
        return sorted(max(0.0, self.jobs[name] - when) for name, when in self.created.items())


async def apply_all(
    cluster: Cluster, load: Load, count: int, connections: int, say: Callable[[str], None]
) -> float:
    """Apply runs and wait for their RayJobs; seconds from the first creation to the last RayJob."""
    started = time.monotonic()
    if count == 1:
        for number in range(ALONE):
            await load.apply(f"run-{number:04d}")
            await load.rendered(number + 1, say)
            await asyncio.sleep(0.2)  # one run alone: the last one's status is written too
    else:
        names = [f"run-{number:04d}" for number in range(count)]
        work = [lambda name=name: load.apply(name) for name in names]
        applying = asyncio.create_task(
            kube_load.bounded(connections, work)
            if connections != KUBECTL
            else load.apply_by_kubectl(cluster, names)
        )
        rendering = asyncio.create_task(load.rendered(count, say))
        try:
            await asyncio.gather(applying, rendering)
        finally:
            rendering.cancel()
    return time.monotonic() - started


async def one_before(load: Load, say: Callable[[str], None]) -> None:
    """A run before those that are measured, and all that is written about it."""
    await load.apply("run-before")
    await load.rendered(1, say)
    await asyncio.sleep(QUIET_SECONDS)
    load.created.clear()
    load.jobs.clear()


async def quiet(operator: OperatorProcess, runs: int) -> dict[tuple[str, str], int]:
    """The operator's calls when it has written nothing for a while."""
    deadline = time.monotonic() + patience(runs)
    known, since = -1, time.monotonic()
    while time.monotonic() < deadline:
        writes = operator.writes
        if writes != known:
            known, since = writes, time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS:
            return operator.calls()
        await asyncio.sleep(0.25)
    raise RuntimeError("the operator writes and writes")


async def resync(cluster: Cluster, operator: OperatorProcess, runs: int) -> tuple[int, float]:
    """Let every run be looked at though nothing changed: writes, and seconds."""
    writes, looks, started = operator.writes, operator.looks, time.monotonic()
    cluster.kube.kubectl("annotate", "rlprofile", "bench", "bench/looked-at=again")
    while operator.looks < looks + runs:
        if time.monotonic() - started > patience(runs):
            raise RuntimeError(f"{operator.looks - looks} of {runs} runs were looked at again")
        await asyncio.sleep(0.1)
    return operator.writes - writes, time.monotonic() - started


async def restart(cluster: Cluster, load: Load, count: int, say: Callable[[str], None]) -> dict[str, float]:
    """Start the operator again after a run was created without it."""
    await load.apply("run-meanwhile")
    operator = cluster.operator(wait=False)
    try:
        await load.rendered(count + 1, say)
        acted = load.jobs["run-meanwhile"] - operator.started
        while operator.looks < count + 2:
            if time.monotonic() - operator.started > patience(count):
                raise RuntimeError(f"{operator.looks} of {count + 2} runs were looked at after the restart")
            await asyncio.sleep(0.1)
        looked = time.monotonic() - operator.started
        calls = await quiet(operator, count + 1)
        of_the_new_one = {kind for verb, kind in calls if verb in WRITES}
        writes = sum(value for (verb, _), value in calls.items() if verb in WRITES)
        say(f"after the restart {writes} writes: {', '.join(sorted(of_the_new_one))}")
        return {
            "acted": acted,
            "looked": looked,
            "writes": writes,
            "memory": peak_megabytes(operator.pid),
        }
    finally:
        operator.kill()


async def measure(
    load_of: tuple[int, int], folder: Path, binaries: Path, run: dict[str, Any], rendered: dict[str, Any]
) -> dict[str, Any]:
    """All figures for a number of runs over a number of connections."""
    count, connections = load_of
    total = ALONE if count == 1 else count

    def say(text: str) -> None:
        print(f"  {title}: {text}", file=sys.stderr, flush=True)

    how = {1: "in a row", KUBECTL: "by kubectl apply"}.get(connections, "at once")
    title = "1 alone" if count == 1 else f"{count:,} {how}"
    found: dict[str, Any] = {"title": title, "runs": total + 1}
    for who in ("operator", "bare"):
        with Cluster(folder / f"{who}-{count}-{connections}", binaries) as cluster:
            program: Program = cluster.operator() if who == "operator" else cluster.bare(rendered)
            client = cluster.client(connections)
            load = Load(client, run)
            try:
                await client.watch("/apis/ray.io/v1/rayjobs", load.saw)
                servers = [cluster.kube.pid(name) for name in ("etcd", "kube-apiserver")]
                pid = program.pid
                await one_before(load, say)
                before = cpu_seconds(pid), sum(map(cpu_seconds, servers))
                seconds = await apply_all(cluster, load, count, connections, say)
                found[who] = {
                    "seconds": seconds,
                    "applying": max(load.created.values()) - min(load.created.values()),
                    "latencies": load.latencies(),
                    "cpu": cpu_seconds(pid) - before[0],
                    "server cpu": sum(map(cpu_seconds, servers)) - before[1],
                }
                p50, p99 = (percentile(found[who], percent) for percent in (50, 99))
                say(f"{who}: all after {seconds:.1f} s, p50 {p50:.2f} s, p99 {p99:.2f} s")
                if not isinstance(program, OperatorProcess):
                    continue
                operator = program
                await load.take_up()
                found["calls"] = await quiet(operator, total)
                found["looks"] = operator.looks
                found["cpu to the end"] = cpu_seconds(pid) - before[0]
                rendered |= await example(cluster, run) if not rendered else {}
                found["resync writes"], found["resync seconds"] = await resync(cluster, operator, total + 1)
                found["memory"] = peak_megabytes(pid)
                program.kill()
                found["restart"] = await restart(cluster, load, total, say)
            finally:
                await client.close()
                program.kill()
    return found


async def example(cluster: Cluster, run: dict[str, Any]) -> dict[str, Any]:
    """Status and events of a run, for the bare operator."""
    name = "run-0000"
    stored = cluster.kube.get("rlrun", name, "-n", "default")
    events = []
    for item in cluster.kube.get("events", "-n", "default")["items"]:
        if item["involvedObject"]["name"] != name:
            continue
        item["metadata"] = {"name": item["metadata"]["name"], "namespace": "default"}
        events.append({"apiVersion": "v1", "kind": "Event", **item})
    text = json.dumps({"status": stored["status"], "events": events})
    text = text.replace(name, kube_load.NAME).replace(stored["metadata"]["uid"], kube_load.UID)
    return {"run": run, **json.loads(text)}


def percentile(found: dict[str, Any], percent: int) -> float:
    """A percentile of the latencies."""
    values = found["latencies"]
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def per_run(found: dict[str, Any], verbs: tuple[str, ...]) -> float:
    """Calls per run."""
    return sum(count for (verb, _), count in found["calls"].items() if verb in verbs) / int(found["runs"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "loads",
        nargs="*",
        default=["1", "100", "1000", "1000/kubectl", "1000/1"],
        metavar="RUNS[/CONNECTIONS]",
    )
    args = parser.parse_args()
    found = binaries_and_run("operator_load")
    if found is None:
        return 2
    rendered: dict[str, Any] = {}
    results = []
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
        for load in args.loads:
            count, _, connections = load.partition("/")
            of = (int(count), KUBECTL if connections == "kubectl" else int(connections or CONNECTIONS))
            results.append(asyncio.run(measure(of, Path(folder), *found, rendered)))
    return 0 if show(results) else 1


def show(results: list[dict[str, Any]]) -> bool:
    """The table and the targets."""
    columns = ["runs", "p50, s", "p99, s", "bare p50", "bare p99", "all, s", "bare all", "writes", "reads"]
    columns += ["looks", "CPU, s", "MB", "resync, s", "back, s", "all seen, s"]
    rows, checks = [], []
    for found in results:
        ours, bare = found["operator"], found["bare"]
        rows.append(
            [
                found["title"],
                *(round(percentile(one, percent), 3) for one in (ours, bare) for percent in (50, 99)),
                round(ours["seconds"], 1),
                round(bare["seconds"], 1),
                round(per_run(found, WRITES), 1),
                round(per_run(found, ("get", "list")), 1),
                round(found["looks"] / found["runs"], 1),
                round(found["cpu to the end"], 1),
                round(found["memory"]),
                round(found["resync seconds"], 1),
                round(found["restart"]["acted"], 1),
                round(found["restart"]["looked"], 1),
            ]
        )
        name = found["title"]
        checks += [
            table.at_most(f"{name}: RayJob p99", percentile(ours, 99), LATENCY_SECONDS, " s"),
            table.at_most(f"{name}: most memory", found["memory"], MEGABYTES, " MB"),
            table.at_most(f"{name}: writes per run", per_run(found, WRITES), WRITES_PER_RUN, ""),
            table.at_most(f"{name}: writes of a resync", found["resync writes"], 0, ""),
            table.at_most(
                f"{name}: writes after a restart for one new run",
                found["restart"]["writes"],
                WRITES_PER_RUN,
                "",
            ),
        ]
    calls = {
        found["title"]: {f"{verb} {kind}": count for (verb, kind), count in sorted(found["calls"].items())}
        for found in results
    }
    for title, counts in calls.items():
        print(f"calls for {title}: " + ", ".join(f"{what} {count:,}" for what, count in counts.items()))
    for found in results:
        for who in ("operator", "bare"):
            one = found[who]
            print(
                f"{found['title']}, {who}: applied within {one['applying']:.1f} s, CPU {one['cpu']:.1f} s, "
                f"API server and etcd {one['server cpu']:.1f} s; mean latency {statistics.mean(one['latencies']):.3f} s"
            )
    return table.report("operator", columns, rows, {"calls": calls}, checks)


if __name__ == "__main__":
    sys.exit(main())
