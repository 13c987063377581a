"""The HTTP server for probes and Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rl_operator.runtime.metrics import Metrics

_STUCK_SECONDS: Final = 180.0


class Health:
    """Whether the operator is alive. Each part says why it is not, in a sentence."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._parts: dict[str, Callable[[], str]] = {}
        self.ready = False
        self._runner: web.AppRunner | None = None
        self.ports: list[int] = []

    def watch(self, name: str, part: Callable[[], str]) -> None:
        """Ask `part` at every probe; it returns a sentence when it is unwell, else nothing."""
        self._parts[name] = part

    async def start(self, *addresses: str) -> None:
        """Listen at each `HOST:PORT`; everything is served at all of them."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._alive),
                web.get("/readyz", self._is_ready),
                web.get("/metrics", self._show_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        for address in addresses:
            host, _, port = address.rpartition(":")
            await web.TCPSite(self._runner, host.strip("[]") or "0.0.0.0", int(port)).start()
        self.ports = [int(address[1]) for address in self._runner.addresses]

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _: web.Request) -> web.Response:
        found = ((name, part()) for name, part in self._parts.items())
        problems = [f"{name}: {sentence}" for name, sentence in found if sentence]
        return web.Response(status=503 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")

    async def _is_ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503, text="ok\n" if self.ready else "starting\n")

    async def _show_metrics(self, _: web.Request) -> web.Response:
        # Thousands of series: nobody's run waits for the text.
        body = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def queue_problem(oldest: float, finished_at: float) -> str:
    """What is wrong with the workers: runs wait, and none is finished."""
    idle = time.monotonic() - finished_at
    if oldest > _STUCK_SECONDS and idle > _STUCK_SECONDS:
        return f"a run has been waiting for {oldest:.0f} s, and none was finished for {idle:.0f} s"
    return ""
