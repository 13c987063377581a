"""Kopf glue: watches that feed the store. No decisions, no handlers that write: Kopf leaves no trace on any object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from rl_operator.kube.cache import WATCHED, Key, place_of
from rl_operator.kube.client import KINDS, version_of
from rl_operator.model.names import MANAGED_SELECTOR
from rl_operator.runtime.controller import Controller

LOG = logging.getLogger("rl_operator")

_KUBERAY: Final = ("RayJob", "RayCluster")
_CHECK_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 10.0
_KUBERAY_SECONDS: Final = 10.0
_LISTING_SECONDS: Final = 0.5
"""How long after the first listed object all objects of a kind are taken to be listed."""


class Watches:
    """Watches of all kinds, begun anew when KubeRay comes or goes, and when one has died in silence."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._again, self._listed = asyncio.Event(), asyncio.Event()
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
                self._handler(kind)
            )
        return registry

    def _handler(self, kind: str) -> Callable[..., Awaitable[None]]:
        async def saw(event: kopf.RawEvent, **_: Any) -> None:
            if event["type"] is None:  # a watch begins, and says nothing of what went before it
                self._listed.set()
            self._controller.seen(kind, event["type"], dict(event["object"]))

        return saw

    async def _check(self, with_kuberay: bool) -> None:
        """Return when the watches must begin anew: KubeRay came or went, or they miss things."""
        loop = asyncio.get_running_loop()
        next_look = loop.time() + _CHECK_SECONDS
        while True:
            listed = await self._a_watch_begins(_KUBERAY_SECONDS)
            try:
                if listed:
                    await self._missed()
                    continue
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
                still = [one for one in missed if self._behind(*one)]
            except Exception as error:
                LOG.warning("the watches could not be checked: %s", error)
                continue
            if still:
                self.stale = (
                    f"watches missed {len(still)} objects, such as {still[0][0]} {'/'.join(still[0][1])}"
                )
                self._restart("stale")
                return

    def _restart(self, reason: str) -> None:
        self._controller.metrics.watch_restarts.labels(reason).inc()
        LOG.info("the watches begin anew: %s", self.stale or f"{reason} came or went")

    async def _a_watch_begins(self, seconds: float) -> bool:
        """Wait for a watch to begin, and to have listed what is there; False: none did."""
        try:
            async with asyncio.timeout(seconds):
                await self._listed.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(_LISTING_SECONDS)
        self._listed.clear()
        return True

    async def _missed(self) -> list[tuple[str, Key, str, int]]:
        """Objects of which the API server knows more than the watches have told; forgets those that are gone.

        A watch that begins lists what is there, but not what went since the last one ended.
        """
        missed = []
        store = self._controller.store
        for kind in WATCHED:
            known_before = store.known(kind)
            items, version = await self._controller.list(kind, metadata_only=True)
            there = {str(item["metadata"].get("uid", "")) for item in items}
            for place, (uid, seen) in known_before.items():
                if uid not in there and seen <= version:
                    self._controller.missing(kind, place, uid)
            for item in items:
                uid, place = str(item["metadata"].get("uid", "")), place_of(item)
                if self._behind(kind, place, uid, version_of(item)):
                    missed.append((kind, place, uid, version_of(item)))
        return missed

    def _behind(self, kind: str, place: Key, uid: str, version: int) -> bool:
        """Whether the watches have not told of this version of an object yet, nor of its end."""
        store = self._controller.store
        known = store.version(kind, place, uid)
        return not store.was_deleted(uid) and (known is None or known < version)


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """As the service account, else as the kubeconfig says: the same as the operator's own client."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


class _NoDiffs(kopf.DiffBaseStorage):
    """Nothing is kept of an object: we compare for ourselves, and Kopf's copies of it would only cost time."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


class _NoProgress(kopf.ProgressStorage):
    """No handler of ours is ever tried again by Kopf."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: Any) -> Any:
        return essence


def _settings(kinds: list[str]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
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
