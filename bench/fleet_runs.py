"""Runs of the fleet's benchmark: how they are applied, what is seen of them, and their drivers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from aiohttp import web
from fleet_cluster import JSON, LONG
from kube_load import RUNS, Client

Place = tuple[str, str]


class Drivers:
    """The status servers of all runs, behind one port: /NAMESPACE/RUN/status, and /checkpoint."""

    def __init__(self) -> None:
        self.born: dict[Place, float] = {}
        self.asked: dict[Place, float] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/{namespace}/{run}/status", self._status)
        app.router.add_post("/{namespace}/{run}/checkpoint", self._checkpoint)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/{{namespace}}/{{run}}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _step(self, request: web.Request) -> tuple[Place, int]:
        place = request.match_info["namespace"], request.match_info["run"]
        if place not in self.born:
            raise web.HTTPServiceUnavailable
        return place, int(time.monotonic() - self.born[place])

    async def _status(self, request: web.Request) -> web.StreamResponse:
        _, step = self._step(request)
        return web.json_response({"phase": "Training", "step": step, "maxSteps": 10**6, "reward": 0.5})

    async def _checkpoint(self, request: web.Request) -> web.StreamResponse:
        place, step = self._step(request)
        self.asked.setdefault(place, time.monotonic())
        return web.json_response({"checkpoint": {"step": step, "uri": f"file:///checkpoints/{step}"}})


class Fleet:
    """What is applied, and what was seen of it."""

    def __init__(
        self, client: Client, manifest: Callable[[str, str], JSON], plain: bool, drivers: Drivers
    ) -> None:
        self._client, self._manifest, self._drivers = client, manifest, drivers
        kind = "/apis/ray.io/v1/namespaces/{}/rayjobs" if plain else f"{RUNS}/namespaces/{{}}/rltrainingruns"
        self._where = kind
        self.created: dict[Place, float] = {}
        self.admitted: dict[Place, float] = {}
        self.jobs: dict[Place, float] = {}
        self.evicted: dict[Place, float] = {}

    async def apply(self, namespace: str, name: str, priority: str = LONG) -> None:
        manifest = self._manifest(name, priority)
        await self._client.send("POST", self._where.format(namespace), json.dumps(manifest))
        self.created[namespace, name] = time.monotonic()

    def saw_workload(self, _: str, workload: JSON) -> None:
        """A change of a Workload, which belongs to a run or to its RayJob."""
        now, metadata = time.monotonic(), workload["metadata"]
        owner = next(iter(metadata.get("ownerReferences", ())), None)
        if owner is None:
            return
        place = metadata["namespace"], _run_of(owner["name"])
        conditions = {one["type"]: one["status"] for one in workload.get("status", {}).get("conditions", ())}
        if conditions.get("Admitted") == "True":
            self.admitted.setdefault(place, now)
        if conditions.get("Evicted") == "True":
            self.evicted.setdefault(place, now)

    def saw_job(self, change: str, job: JSON) -> None:
        """A change of a RayJob: is it one that may run?"""
        if change != "DELETED" and not job["spec"].get("suspend"):
            place = job["metadata"]["namespace"], _run_of(job["metadata"]["name"])
            self.jobs.setdefault(place, time.monotonic())

    def begun(self, namespace: str, job: str) -> None:
        self._drivers.born.setdefault((namespace, _run_of(job)), time.monotonic())

    def since(self, names: list[Place], seen: dict[Place, float]) -> JSON:
        """How long it took from a creation, as latencies in order."""
        return {"latencies": sorted(max(0.0, seen[name] - self.created[name]) for name in names)}


def _run_of(job: str) -> str:
    """Name of the run that a RayJob is an attempt of; a plain RayJob is its own."""
    return re.sub(r"-1$", "", job) if re.match(r"(run|urgent)-\d+-1$|warm-up-1$", job) else job
