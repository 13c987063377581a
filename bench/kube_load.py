"""What bench/operator_load.py measures with: a client that notes when it saw what, and a bare operator.

The bare operator is the floor: it watches runs and issues the writes that the operator issues for one, prepared
beforehand, without looking at anything. What it takes is what the API server takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

RUNS: Final = "/apis/rltrain.dev/v1alpha1"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
BARE_WORKERS: Final = 16
NAME: Final = "run-of-the-bench"
UID: Final = "00000000-0000-4000-8000-000000000000"


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    """Most resident memory of a process so far."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


class Client:
    """A client of the API server that notes when it saw what."""

    def __init__(self, server: str, token: str, certificate: Path, connections: int) -> None:
        self.server = server
        context = ssl.create_default_context(cafile=str(certificate))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections + 8, ssl=context),
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=1 << 20,
        )
        self.watches: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        """Stop watching, close all connections."""
        for task in self.watches:
            task.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        await self._session.close()

    async def send(
        self, method: str, path: str, body: str = "", kind: str = "application/json", expected: bool = True
    ) -> bytes:
        """One request; an answer that is no success is an error, unless it is `expected` to be possible."""
        async with self._session.request(
            method, self.server + path, data=body or None, headers={"Content-Type": kind}
        ) as answer:
            data = await answer.read()
            if expected and answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
            return data

    async def watch(
        self, path: str, saw: Callable[[str, dict[str, Any]], None], whole: bool = False
    ) -> asyncio.Task[None]:
        """Call `saw` with type and metadata, or the `whole` object, of each change from now on; returns when that began."""
        listed = json.loads(await self.send("GET", f"{path}?limit=1"))
        since = listed["metadata"]["resourceVersion"]
        begun = asyncio.Event()
        watch = asyncio.create_task(self._follow(f"{path}?watch=true", since, saw, begun, whole))
        self.watches.append(watch)
        beginning = asyncio.create_task(begun.wait())
        await asyncio.wait((watch, beginning), return_when=asyncio.FIRST_COMPLETED)
        if not begun.is_set():
            watch.result()
        return watch

    async def _follow(
        self,
        path: str,
        since: str,
        saw: Callable[[str, dict[str, Any]], None],
        begun: asyncio.Event,
        whole: bool,
    ) -> None:
        accepted = {"Accept": "application/json" if whole else METADATA}
        while True:  # the API server ends a watch that cannot follow
            url = f"{self.server}{path}&resourceVersion={since}"
            async with self._session.get(url, headers=accepted) as answer:
                if answer.status == 429:  # as for moments after a definition was made
                    await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
                    continue
                answer.raise_for_status()
                begun.set()
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {path} has ended: {event['object']}")
                    since = event["object"]["metadata"]["resourceVersion"]
                    saw(event["type"], event["object"] if whole else event["object"]["metadata"])


async def bounded(limit: int, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do all, at most `limit` at once."""
    waiting = iter(work)

    async def worker() -> None:
        for one in waiting:
            await one()

    await asyncio.gather(*(worker() for _ in range(limit)))


def render(folder: Path, status: dict[str, Any], events: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """Prepare what the bare operator writes for a run: as the operator does it, name and uid to be filled in."""
    from rl_operator.kube.wire import path
    from rl_operator.model.settings import FINALIZER, Settings
    from rl_operator.plan.effective import Effective, plan
    from rl_operator.render.objects import all_objects

    metadata = {"name": NAME, "namespace": "default", "uid": UID, "generation": 1}
    planned = plan({**run, "metadata": metadata}, [], Settings())
    if not isinstance(planned, Effective):
        raise RuntimeError(planned.message)
    objects = all_objects(planned, 1, b"a key of the bench alone")
    identity = {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        "metadata": {"name": NAME, "namespace": "default", "uid": UID},
    }
    guarded = {**identity, "metadata": identity["metadata"] | {"finalizers": [FINALIZER]}}
    ours = path("RLTrainingRun", "default", NAME)

    def made(manifest: dict[str, Any]) -> list[str]:
        # At version 1 there is none: so the operator makes what is new.
        metadata = manifest["metadata"] | {"namespace": "default", "resourceVersion": "1"}
        where = path(manifest["kind"], "default", metadata["name"])
        return [where, json.dumps(manifest | {"metadata": metadata})]

    create = [made(one) for one in objects]
    last = [[ours, json.dumps(guarded)], *(made(event) for event in events)]
    last += [[f"{ours}/status", json.dumps({**identity, "status": status})]]
    (folder / "writes.json").write_text(json.dumps({"first": create[:-1], "job": create[-1:], "last": last}))


async def bare_operator(server: str, token: str, certificate: Path, folder: Path) -> None:
    """Watch runs; for each new one issue the writes that were prepared."""
    writes = json.loads((folder / "writes.json").read_text())
    client = Client(server, token, certificate, 100)
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def saw(change: str, metadata: dict[str, Any]) -> None:
        if change == "ADDED":
            queue.put_nowait((metadata["name"], metadata["uid"]))

    async def write(path: str, body: str, name: str, uid: str) -> None:
        where = path.replace(NAME, name) + "?fieldManager=bare&force=true"
        body = body.replace(NAME, name).replace(UID, uid)
        await client.send("PATCH", where, body, "application/apply-patch+yaml")

    async def worker() -> None:
        while True:
            name, uid = await queue.get()
            await asyncio.gather(*(write(*one, name, uid) for one in writes["first"]))
            for one in (*writes["job"], *writes["last"]):
                await write(*one, name, uid)

    await client.watch(f"{RUNS}/rltrainingruns", saw)
    (folder / "ready").touch()
    await asyncio.gather(*client.watches, *(worker() for _ in range(BARE_WORKERS)))


if __name__ == "__main__":
    asyncio.run(bare_operator(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
