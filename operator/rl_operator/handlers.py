"""Kopf glue: watches that feed the store. No decisions, no handlers that write: Kopf leaves no trace on any object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from rl_operator.api import KINDS
from rl_operator.controller import Controller
from rl_operator.render.names import MANAGED_SELECTOR
from rl_operator.store import WATCHED, place_of, version_of

LOG = logging.getLogger("rl_operator")

_KUBERAY: Final = ("RayJob", "RayCluster")
_CHECK_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 10.0
_KUBERAY_SECONDS: Final = 10.0


class Watches:
    """Watches of all kinds, begun anew when KubeRay comes or goes, and when one has died in silence."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._again = asyncio.Event()
        self.stale: str = ""
        """Why watches cannot be trusted, for the liveness probe; empty: they can."""

    async def run(self) -> None:
        """Watch until cancelled, or until a signal: Kopf takes over the handlers of SIGTERM and SIGINT."""
        while True:
            self._again.clear()
            kinds = [kind for kind in WATCHED if kind not in _KUBERAY]
            with_kuberay = await self._controller.cluster.kuberay()
            if with_kuberay:
                kinds += _KUBERAY
            watcher = asyncio.create_task(self._watch(kinds))
            checker = asyncio.create_task(self._check(with_kuberay))
            try:
                done, _ = await asyncio.wait((watcher, checker), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if watcher in done:
                    return
            finally:
                self._again.set()
                checker.cancel()
                await asyncio.wait((watcher,), timeout=10.0)
                watcher.cancel()

    async def _watch(self, kinds: list[str]) -> None:
        scope: dict[str, Any] = (
            {"namespaces": self._controller.namespaces}
            if self._controller.namespaces
            else {"clusterwide": True}
        )
        await kopf.operator(
            registry=self._registry(kinds),
            settings=_settings(kinds),
            standalone=True,
            stop_flag=self._again,
            **scope,
        )

    def _registry(self, kinds: list[str]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY)(_login)
        for kind in kinds:
            api = KINDS[kind]
            kopf.on.event(api.group, api.version, api.plural, registry=registry, id=f"saw-{api.plural}")(
                _handler(self._controller, kind)
            )
        return registry

    async def _check(self, with_kuberay: bool) -> None:
        """Return when the watches must begin anew: KubeRay came or went, or they miss things."""
        loop = asyncio.get_running_loop()
        next_look = loop.time() + _CHECK_SECONDS
        while True:
            await asyncio.sleep(_KUBERAY_SECONDS)
            try:
                if await self._controller.cluster.kuberay() != with_kuberay:
                    self._restart("KubeRay")
                    return
                if loop.time() < next_look:
                    continue
                next_look = loop.time() + _CHECK_SECONDS
                missed = await self._missed()
                if not missed:
                    self.stale = ""
                    continue
                await asyncio.sleep(_PATIENCE_SECONDS)
                still = missed & await self._missed()
            except Exception as error:
                LOG.warning("the watches could not be checked: %s", error)
                continue
            if still:
                self.stale = f"watches missed {len(still)} objects, such as {min(still)}"
                self._restart("stale")
                return

    def _restart(self, reason: str) -> None:
        self._controller.metrics.watch_restarts.labels(reason).inc()
        LOG.info("the watches begin anew: %s", self.stale or f"{reason} came or went")

    async def _missed(self) -> set[tuple[str, str, str]]:
        """Objects of which the API server knows more than the watches have told."""
        missed = set()
        store = self._controller.store
        for kind in WATCHED:
            for item in await self._controller.list(kind, metadata_only=True):
                uid, place = str(item["metadata"].get("uid", "")), place_of(item)
                owned = any(
                    o.get("kind") == "RLTrainingRun" for o in item["metadata"].get("ownerReferences") or ()
                )
                if kind in (*_KUBERAY, "NetworkPolicy", "PodDisruptionBudget") and not owned:
                    continue
                known = store.version(kind, place, uid)
                if not store.was_deleted(uid) and (known is None or known < version_of(item)):
                    missed.add((kind, *place))
        return missed


def _handler(controller: Controller, kind: str) -> Callable[..., Awaitable[None]]:
    async def saw(event: kopf.RawEvent, **_: Any) -> None:
        controller.seen(kind, event["type"], dict(event["object"]))

    return saw


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """As the service account, else as the kubeconfig says: the same as the operator's own client."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


def _settings(kinds: list[str]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # we begin anew in the same process
    settings.scanning.disabled = True  # no need to watch namespaces and definitions
    settings.networking.request_timeout = 60.0
    settings.networking.connect_timeout = 10.0
    settings.watching.connect_timeout = 10.0
    settings.watching.server_timeout = 300  # the API server takes whole seconds only
    settings.watching.client_timeout = 330.0
    settings.queueing.exit_timeout = 1.0
    for kind in kinds:
        api = KINDS[kind]
        if api.group != "rltrain.dev":
            settings.watching.label_selectors[api.group, api.version, api.plural] = MANAGED_SELECTOR
    return settings
