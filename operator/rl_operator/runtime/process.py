"""The operator as a process under Kopf: first the lease and a look at everything, then the work, until a signal.

Kopf keeps the process: its start and its end, signals at any time of it, and, where they come, webhooks for admission. It
watches nothing: why, is said in `rl_operator.kube.watch`. No handler of ours writes through it, and it leaves no trace on
any object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.key import BadKey
from rl_operator.runtime.leader import Leader, LeaderLost
from rl_operator.runtime.metrics import Metrics

LOG = logging.getLogger("rl_operator")

_END_SECONDS: Final = 10.0


class Process:
    """What a process does from its start to its end."""

    def __init__(
        self,
        api: Api,
        controller: Controller,
        metrics: Metrics,
        workers: int,
        key: Callable[[], Awaitable[bytes]],
        leader: Leader | None = None,
    ) -> None:
        """Prepare; with a `leader` nothing is done, and nothing written, without the lease. `key`: gives the operator's."""
        self._api, self._controller, self._metrics = api, controller, metrics
        self._workers, self._key, self._leader = workers, key, leader
        self._stop = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []
        self._failed = False

    async def run(self) -> bool:
        """Work until a signal, or until something fails; whether nothing has."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        kopf.on.startup(registry=registry)(self._start)
        kopf.on.cleanup(registry=registry)(self._end)
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(),
                standalone=True,
                clusterwide=True,
                stop_flag=self._stop,
            )
        finally:
            if self._leader is not None:
                await self._leader.release()
        return not self._failed

    async def _start(self, **_: Any) -> None:
        try:
            if self._leader is not None:
                await self._leader.acquire()
                self._api.lease = lambda: self._leader.left if self._leader else 0.0
                self._work.append(asyncio.create_task(self._leader.keep()))
            self._metrics.leader.set(1)
            self._controller.cluster.key = await self._key()
            await self._controller.prime()
        except Exception as error:  # Kopf would try again and again, and look well meanwhile
            LOG.error("%s", error, exc_info=None if isinstance(error, ApiError | BadKey | OSError) else error)
            self._give_up()
            return
        runs, services = self._controller.store.runs(), self._controller.services.store.services()
        LOG.info("%d runs and %d services are kept going", len(runs), len(services))
        self._work += map(
            asyncio.create_task, (self._controller.run(self._workers), self._controller.show_metrics())
        )
        for task in self._work:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            LOG.error("stopping: %s", error, exc_info=None if isinstance(error, LeaderLost) else error)
            self._give_up()

    def _give_up(self) -> None:
        self._failed = True
        self._stop.set()

    async def _end(self, **_: Any) -> None:
        for task in self._work:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=_END_SECONDS)


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """As the service account, else as the kubeconfig says: the same as the operator's own client."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # the kubelet has its own
    settings.scanning.disabled = True  # no need to watch namespaces and definitions
    settings.networking.request_timeout = 60.0
    settings.networking.connect_timeout = 10.0
    return settings
