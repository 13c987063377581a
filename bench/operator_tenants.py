"""One hostile namespace beside an honest one: a real kube-apiserver and etcd, the real operator as a process, no nodes.

    python bench/operator_tenants.py [1000]

The hostile namespace applies all its runs at once. A third of their drivers take a request and never answer; a third change
phase, checkpoint and figures with every answer, and a third answer with a megabyte. Meanwhile, and for a minute after, a run
is applied to the honest namespace every two seconds. What KubeRay and the kubelet would do, this plays: each RayJob is said
to run, and has a head pod.

Measured of the honest runs: the time from the answer to a run's creation to the sight of its RayJob in a watch, and how old
the step in its status is at worst, from the time on at which its driver answers. A driver's step is the seconds of its life.
The same without a hostile namespace comes first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import kube_load
import table
from aiohttp import web
from kube_load import RUNS, Client, cpu_seconds, peak_megabytes
from operator_cluster import Cluster, binaries_and_run
from operator_process import WRITES

HONEST, HOSTILE = "honest", "hostile"
LATENCY_SECONDS, AGE_SECONDS, MEGABYTES = 2.0, 15.0, 512.0
EVERY_SECONDS, AFTER_SECONDS = 2.0, 60.0
CONNECTIONS = 8
PLAYERS = 8
PATIENCE = 300.0, 3.0  # seconds until all hostile runs are at work, and more of them for each


class Drivers:
    """The status servers of all runs, behind one port: /NAMESPACE/RUN/status."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.born: dict[tuple[str, str], float] = {}
        self._over = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{namespace}/{run}/{what}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/{{namespace}}/{{run}}"

    async def stop(self) -> None:
        self._over.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        namespace, run = request.match_info["namespace"], request.match_info["run"]
        self.asked[namespace] += 1
        if (namespace, run) not in self.born:
            raise web.HTTPServiceUnavailable
        life = int(time.monotonic() - self.born[namespace, run])
        said: dict[str, Any] = {"phase": "Training", "step": life, "maxSteps": 10**6, "reward": 0.5}
        kind = int(run.rpartition("-")[2]) % 3 if namespace == HOSTILE else None
        if kind == 0:
            await self._over.wait()
        elif kind == 1:
            said |= {"phase": "Evaluating" if life % 2 else "Training", "reward": time.monotonic()}
            said["checkpoint"] = {"step": life, "uri": f"s3://{life}/" + 900 * "x"}
        elif kind == 2:
            said["checkpoint"] = {"step": life, "uri": f"s3://{life}/" + (1 << 20) * "x"}
        return web.json_response(said)


def _owned(
    version: str, kind: str, name: str, labels: dict[str, str], owner: tuple[str, str, str]
) -> dict[str, Any]:
    reference = {"apiVersion": "ray.io/v1", "kind": owner[0], "name": owner[1], "uid": owner[2]}
    metadata = {"name": name, "labels": labels, "ownerReferences": [reference | {"controller": True}]}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


class Tenants:
    """Runs of both namespaces, and what was seen of them."""

    def __init__(self, client: Client, run: dict[str, Any], drivers: Drivers) -> None:
        self.client, self.run, self.drivers = client, run, drivers
        self.created: dict[str, float] = {}
        self.jobs: dict[tuple[str, str], float] = {}
        self.ages: dict[str, float] = {}
        self._play: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()

    def saw(self, change: str, metadata: dict[str, Any]) -> None:
        if change != "ADDED":
            return
        namespace, job = str(metadata["namespace"]), str(metadata["name"])
        if not job.endswith("-1"):
            raise RuntimeError(f"{namespace}/{job}: a run needed a second attempt")
        self.jobs[namespace, job.removesuffix("-1")] = time.monotonic()
        self._play.put_nowait((namespace, job, str(metadata["uid"])))

    async def apply(self, namespace: str, name: str) -> None:
        run = {**self.run, "metadata": {"name": name}}
        await self.client.send("POST", f"{RUNS}/namespaces/{namespace}/rltrainingruns", json.dumps(run))
        self.created[name] = time.monotonic()

    async def play(self) -> None:
        """What KubeRay and a node would do with each RayJob; those of the honest namespace wait in line as well."""
        while True:
            namespace, job, uid = await self._play.get()
            name, cluster = job.removesuffix("-1"), f"{job}-cluster"
            labels = {"rltrain.dev/run": name, "rltrain.dev/attempt": "1"}
            labels["app.kubernetes.io/managed-by"] = "rltrain-operator"
            template = {"spec": {"containers": [{"name": "ray-head", "image": "none"}]}}
            made = await self._make(
                f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
                _owned("ray.io/v1", "RayCluster", cluster, labels, ("RayJob", job, uid))
                | {"spec": {"headGroupSpec": {"rayStartParams": {}, "template": template}}},
            )
            pods = f"/api/v1/namespaces/{namespace}/pods"
            labels |= {"rltrain.dev/role": "head"}
            owner = "RayCluster", cluster, made["metadata"]["uid"]
            await self._make(pods, _owned("v1", "Pod", f"{job}-head", labels, owner) | template)
            conditions = [{"type": "Ready", "status": "True"}]
            ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
            await self._say(f"{pods}/{job}-head/status", ready)
            head = {"state": "ready", "head": {"serviceName": f"{job}-head-svc"}}
            running = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": cluster}
            where = f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs/{job}/status"
            await self._say(where, running | {"rayClusterStatus": head})
            self.drivers.born[namespace, name] = time.monotonic()

    async def _make(self, where: str, manifest: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(await self.client.send("POST", where, json.dumps(manifest)))
        return made

    async def _say(self, where: str, status: dict[str, Any]) -> None:
        kind = "application/merge-patch+json"
        await self.client.send("PATCH", where, json.dumps({"status": status}), kind)

    async def look(self) -> None:
        """Note how old the step is that each honest run shows."""
        where = f"{RUNS}/namespaces/{HONEST}/rltrainingruns"
        while True:
            asked = time.monotonic()  # what is read is not older
            for run in json.loads(await self.client.send("GET", where))["items"]:
                name = run["metadata"]["name"]
                born = self.drivers.born.get((HONEST, name))
                if born is not None:
                    step = ((run.get("status") or {}).get("progress") or {}).get("step") or 0
                    self.ages[name] = max(self.ages.get(name, 0.0), asked - born - step)
            await asyncio.sleep(1.0)

    async def apply_now_and_then(self) -> None:
        number = 0
        while True:
            await self.apply(HONEST, f"mine-{number}")
            number += 1
            await asyncio.sleep(EVERY_SECONDS)

    def latencies(self) -> dict[str, float]:
        now = time.monotonic()
        seen = {name: self.jobs.get((HONEST, name), now) for name in self.created if name.startswith("mine-")}
        return {name: max(0.0, when - self.created[name]) for name, when in seen.items()}


async def measure(runs: int, folder: Path, binaries: Path, run: dict[str, Any]) -> dict[str, Any]:
    """All figures; 0 runs: those of the honest namespace alone."""
    drivers = Drivers()
    url = await drivers.start()
    try:
        with Cluster(folder / f"tenants-{runs}", binaries) as cluster:
            for namespace in (HONEST, HOSTILE):
                cluster.kube.kubectl("create", "namespace", namespace)
            operator = await asyncio.to_thread(cluster.operator, True, f"--driver-url={url}")
            client = cluster.client(CONNECTIONS + 32)
            tenants = Tenants(client, run, drivers)
            tasks: list[asyncio.Task[None]] = []
            try:
                await client.watch("/apis/ray.io/v1/rayjobs", tenants.saw)
                await tenants.apply(HONEST, "first-0")  # the API server reads the RayJob's definition
                tasks += [asyncio.create_task(tenants.play()) for _ in range(PLAYERS)]
                tasks.append(asyncio.create_task(tenants.look()))
                await asyncio.sleep(5.0)
                tasks.append(asyncio.create_task(tenants.apply_now_and_then()))
                work = [lambda name=f"theirs-{i}": tenants.apply(HOSTILE, name) for i in range(runs)]
                started = time.monotonic()
                await kube_load.bounded(CONNECTIONS, work)
                applied = time.monotonic() - started
                while sum(namespace == HOSTILE for namespace, _ in drivers.born) < runs:
                    broken = next((one for one in (*tasks, *client.watches) if one.done()), None)
                    if broken is not None:
                        await broken
                    if time.monotonic() - started > PATIENCE[0] + PATIENCE[1] * runs:
                        raise RuntimeError(f"{len(drivers.born)} of {runs} hostile runs are at work")
                    print(f"  {len(tenants.jobs)} RayJobs, {len(drivers.born)} drivers", file=sys.stderr)
                    await asyncio.sleep(5.0)
                during = len(tenants.created)
                begun = time.monotonic() - started
                calls, asked, cpu = operator.calls(), drivers.asked.copy(), cpu_seconds(operator.pid)
                await asyncio.sleep(AFTER_SECONDS)
                after, later = operator.calls(), drivers.asked - asked
                writes = sum(after[what] - calls.get(what, 0) for what in after if what[0] in WRITES)
                found = list(tenants.latencies().items())
                names = list(tenants.created)
                return {
                    "runs": runs,
                    "applied": applied,
                    "begun": begun,
                    "latencies": sorted(value for _, value in found),
                    "latencies while they began": sorted(v for n, v in found if n in names[:during]),
                    "ages": sorted(tenants.ages.values()),
                    "writes": writes / AFTER_SECONDS,
                    "asked honest": later[HONEST] / AFTER_SECONDS,
                    "asked hostile": later[HOSTILE] / AFTER_SECONDS,
                    "cpu": (cpu_seconds(operator.pid) - cpu) / AFTER_SECONDS,
                    "memory": peak_megabytes(operator.pid),
                    "alive": operator.alive and operator.running,
                }
            finally:
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.gather(*tasks, return_exceptions=True)
                await client.close()
                operator.kill()
    finally:
        await drivers.stop()


def percentile(values: list[float], percent: int) -> float:
    """A percentile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=int, default=1000, help="of the hostile namespace")
    args = parser.parse_args()
    found = binaries_and_run("operator_tenants")
    if found is None:
        return 2
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
        results = [asyncio.run(measure(runs, Path(folder), *found)) for runs in (0, args.runs)]
    return 0 if show(results) else 1


def show(results: list[dict[str, Any]]) -> bool:
    """The table and the targets."""
    columns = ["hostile runs", "applied, s", "all at work, s", "honest runs", "p50, s", "p99, s", "most, s"]
    columns += ["age p50, s", "age most, s", "asked/s", "hostile asked/s", "writes/s", "CPU", "MB"]
    rows = [
        [
            found["runs"],
            round(found["applied"], 1),
            round(found["begun"], 1),
            len(found["latencies"]),
            *(round(percentile(found["latencies"], percent), 3) for percent in (50, 99, 100)),
            *(round(percentile(found["ages"], percent), 1) for percent in (50, 100)),
            round(found["asked honest"], 1),
            round(found["asked hostile"], 1),
            round(found["writes"], 1),
            round(found["cpu"], 2),
            round(found["memory"]),
        ]
        for found in results
    ]
    last = results[-1]
    checks = [
        table.at_most("honest run to RayJob, p99", percentile(last["latencies"], 99), LATENCY_SECONDS, " s"),
        table.at_most("age of an honest run's step", last["ages"][-1], AGE_SECONDS, " s"),
        table.at_most("most memory of the operator", last["memory"], MEGABYTES, " MB"),
        table.at_least("operator alive, and never restarted", float(last["alive"]), 1.0, ""),
    ]
    return table.report("operator_tenants", columns, rows, {}, checks)


if __name__ == "__main__":
    sys.exit(main())
