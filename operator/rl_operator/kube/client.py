"""The Kubernetes client: requests with a deadline, counted, whose errors are sentences."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from rl_operator.kube.wire import (
    APPLY,
    JSON_PATCH,
    PAGE,
    WATCH_SECONDS,
    ApiError,
    kind_of,
    parsed,
    path,
    refusal,
    retry_after,
    watch_event,
    watch_query,
)
from rl_operator.model.names import Manifest
from rl_operator.model.settings import FIELD_MANAGER

_NO_VERSION: Final = "1"
"""A resource version that no object has: what is applied with it is made, and refused where there is one already."""

Manifests = list[Manifest]

_METHODS: Final = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}
"""Verbs that write. What is new is applied by a PATCH as well."""


Called = Callable[[str, str, str, float], None]
"""Hears of every request: its verb, kind, the answer's code (`none`: there was none), and seconds."""


class Api:
    """A connection to the API server."""

    def __init__(self, api_client: client.ApiClient, called: Called, timeout: float = 15.0) -> None:
        self._client, self._called, self._timeout = api_client, called, timeout
        self._host = api_client.configuration.host.rstrip("/")
        self.lease: Callable[[], float] = lambda: math.inf
        """Seconds for which this process may still write; asked before every write but those of the lease itself."""

    @classmethod
    async def connect(cls, called: Called) -> Api:
        """Connect with the pod's service account, or outside a cluster as the kubeconfig says.

        Raises:
            kubernetes.aio.config.ConfigException: there is neither.
        """
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration, persist_config=False)
        # Looked up once: for each request aiohttp would do it in a thread, and read ~/.netrc in another.
        configuration.proxy = configuration.proxy or proxy_of(str(configuration.host))
        configuration.client_session_kwargs = {"trust_env": False}
        return cls(client.ApiClient(configuration), called)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _request(
        self,
        verb: str,
        path: str,
        kind: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
    ) -> bytes:
        """Send one request, again where a busy server asks for it; returns the answer's body.

        Raises:
            ApiError: it was refused, there was no answer in time, or it is a write and the lease has run out.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            if verb in _METHODS and kind != "Lease":
                left = min(left, self.lease())
                if left <= 0:
                    raise ApiError(0, "LeaseLost", "the lease has run out: nothing is written any more")
            timeout = aiohttp.ClientTimeout(total=left)
            async with self._answer(verb, path, kind, query, body, content, timeout) as answer:
                data: bytes = await answer.read()
                pause = retry_after(answer.status, answer.headers)
                if pause is None or time.monotonic() + pause >= deadline:
                    return _checked(answer.status, data)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        path: str,
        kind: str,
        query: Mapping[str, str] | None,
        body: object,
        content: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to one request while it is read."""
        sent = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, "Content-Type": content}
        method = "PATCH" if content in (APPLY, JSON_PATCH) else _METHODS.get(verb, "GET")
        queries = list((query or {}).items())
        await self._client.update_params_for_auth(sent, queries, ["BearerToken"], path, method, body)
        url = f"{self._host}{path}{'?' + urlencode(queries) if queries else ''}"
        code, started = "none", time.monotonic()
        try:
            try:
                found = await self._client.rest_client.request(
                    method, url, headers=sent, body=body, _request_timeout=timeout
                )
                code = str(found.status)
            finally:  # before it is read: a watch is read for a minute
                self._called(verb, kind, code, time.monotonic() - started)
            async with found.response as answer:
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise ApiError(0, "NoAnswer", f"the API server does not answer: {text}") from error

    async def get(self, kind: str, namespace: str | None, name: str) -> Manifest:
        """One object."""
        return parsed(await self._request("get", path(kind, namespace, name), kind))

    async def find(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """One object; None: there is none."""
        try:
            return await self.get(kind, namespace, name)
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def pages(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[Manifests, str]]:
        """All objects that match, each with its kind, page by page, and the version at which it was so.

        Raises:
            ApiError: also `gone`, where reading took so long that the rest is forgotten.
        """
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields, "continue": ""}
        while True:
            asked = {key: value for key, value in query.items() if value}
            found = parsed(await self._request("list", path(kind, namespace), kind, asked))
            metadata = found.get("metadata") or {}
            items: Manifests = found.get("items") or []
            for item in items:
                item["kind"] = kind
            yield items, str(metadata.get("resourceVersion") or "")
            query["continue"] = str(metadata.get("continue") or "")
            if not query["continue"]:
                return

    async def list(self, kind: str, namespace: str, *, labels: str = "", fields: str = "") -> Manifests:
        """All objects that match."""
        pages = self.pages(kind, namespace, labels=labels, fields=fields)
        return [item async for items, _ in pages for item in items]

    async def watch(
        self, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """What happens after `version`, as (ADDED, MODIFIED, DELETED or BOOKMARK; object with its kind).

        Ends now and then without a fault; begin again where it ended.

        Raises:
            ApiError: the connection broke or is dead, or `version` is forgotten (`gone`).
        """
        query = watch_query(version) | ({"labelSelector": labels} if labels else {})
        where = path(kind, namespace)
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout, sock_read=WATCH_SECONDS + self._timeout
        )
        async with self._answer("watch", where, kind, query, None, "", silence) as answer:
            if answer.status != 200:
                _checked(answer.status, await answer.read())
            rest: list[bytes] = []
            async for chunk in answer.content.iter_any():
                first, *lines = chunk.split(b"\n")
                rest.append(first)
                for line in lines:
                    change, found = watch_event(b"".join(rest))
                    rest = [line]
                    yield change, found | {"kind": kind}

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Make an object that is never brought to anything else: no right to `patch` its kind is needed for that.

        Refused (`conflict`) where there is one of that name, whoever's it is. `dry_run`: all is as if, and nothing is made.
        """
        kind = kind_of(manifest)
        where = path(kind, manifest["metadata"].get("namespace"))
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return parsed(await self._request("create", where, kind, query, manifest))

    async def apply(
        self, manifest: Manifest, subresource: str = "", *, new: bool = False, manager: str = ""
    ) -> Manifest:
        """Server-side apply: the fields of `manifest` are ours, and those we no longer name are removed.

        With `new` the object is made, and refused (`conflict`) where there is one of that name, whoever's it is. Else a
        `uid` or a `resourceVersion` in its metadata is a condition: `conflict` where the object is another one, has changed,
        or is gone; what was deleted is not made again. With a `manager` the fields are its own, and refused (`conflict`)
        where they are another's.
        """
        metadata, kind = manifest["metadata"], manifest["kind"]
        where = path(kind, metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": manager} if manager else {"fieldManager": FIELD_MANAGER, "force": "true"}
        if new:
            manifest = manifest | {"metadata": metadata | {"resourceVersion": _NO_VERSION}}
        try:
            return parsed(
                await self._request("create" if new else "patch", where, kind, query, manifest, APPLY)
            )
        except ApiError as error:
            if any(cause.get("field") == "metadata.uid" for cause in error.causes):
                raise ApiError(409, "Conflict", error.message) from error
            raise

    async def patch(
        self, kind: str, namespace: str, name: str, operations: Manifests, subresource: str = ""
    ) -> Manifest:
        """JSON patch of what is not ours alone; refused (`conflict`) when one of its tests fails."""
        query = {"fieldManager": FIELD_MANAGER}
        where = path(kind, namespace, name, subresource)
        try:
            return parsed(await self._request("patch", where, kind, query, operations, JSON_PATCH))
        except ApiError as error:
            if error.status == 422 and not error.causes:  # those of a wrong value; a test that fails has none
                raise ApiError(409, "Conflict", f"{kind} {name} is not what it was taken for") from error
            raise

    async def has_group(self, group: str, version: str = "", plural: str = "") -> bool:
        """Whether the cluster serves an API group, in whichever version; or, in this one, this resource."""
        where = "/".join(part for part in ("/apis", group, version) if part)
        try:
            found = parsed(await self._request("get", where, "APIResourceList" if plural else "APIGroup"))
        except ApiError as error:
            if error.missing:
                return False
            raise
        return not plural or any(one.get("name") == plural for one in found.get("resources") or ())

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete this very object, and in the background what it owns; nothing happens when it is gone already."""
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        body["preconditions"] = {"uid": uid}
        try:
            await self._request("delete", path(kind, namespace, name), kind, None, body)
        except ApiError as error:
            if not error.missing and not error.conflict:
                raise

    async def log_tail(self, namespace: str, pod: str, container: str) -> str:
        """The last lines of a container's log before its last restart; empty when there are none."""
        query = {"container": container, "previous": "true", "tailLines": "5"}
        try:
            data = await self._request("get", path("Pod", namespace, pod, "log"), "PodLog", query)
        except ApiError:
            return ""
        return data.decode(errors="replace")


def proxy_of(url: str) -> str | None:
    """Proxy that the environment names for a URL; None: none."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _checked(status: int, data: bytes) -> bytes:
    if not 200 <= status < 300:
        raise refusal(status, data.decode(errors="replace"))
    return data
