"""The Kubernetes client: requests with a deadline, counted, whose errors are sentences."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from rl_operator.model.names import Manifest
from rl_operator.model.settings import FIELD_MANAGER


class Calls(Protocol):
    """Hears of every request."""

    def api_called(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """A request was answered with `code`, or `none` where there was no answer."""


@dataclass(frozen=True)
class Kind:
    """Where the API server keeps a kind of objects."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def root(self) -> str:
        """Path of the API."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


KINDS: Final[Mapping[str, Kind]] = {
    "RLTrainingRun": Kind("rltrain.dev", "v1alpha1", "rltrainingruns"),
    "RLTrainingProfile": Kind("rltrain.dev", "v1alpha1", "rltrainingprofiles", namespaced=False),
    "RayJob": Kind("ray.io", "v1", "rayjobs"),
    "RayCluster": Kind("ray.io", "v1", "rayclusters"),
    "Pod": Kind("", "v1", "pods"),
    "Event": Kind("", "v1", "events"),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Secret": Kind("", "v1", "secrets"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets"),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
}
"""The kinds that the operator deals with."""

Manifests = list[Manifest]
Listing = tuple[Manifests, int]
"""Objects, and the resource version at which it was so."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """The API server refused a request, or did not answer. `status` is 0 for the latter."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def missing(self) -> bool:
        """Whether the object, or its kind, is not there."""
        return self.status == 404


class Api:
    """A connection to the API server."""

    def __init__(self, api_client: client.ApiClient, calls: Calls, timeout: float = 15.0) -> None:
        self._client, self._calls, self._timeout = api_client, calls, timeout
        self._host = api_client.configuration.host.rstrip("/")

    @classmethod
    async def connect(cls, calls: Calls, timeout: float = 15.0) -> Api:
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
        return cls(client.ApiClient(configuration), calls, timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def request(
        self,
        verb: str,
        method: str,
        path: str,
        kind: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send one request; returns the answer's body.

        Raises:
            ApiError: it was refused, or there was no answer in time.
        """
        sent = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, **(headers or {})}
        queries: list[tuple[str, str]] = list((query or {}).items())
        await self._client.update_params_for_auth(sent, queries, ["BearerToken"], path, method, body)
        url = f"{self._host}{path}{'?' + urlencode(queries) if queries else ''}"
        code, started = "none", time.monotonic()
        try:
            response = await self._client.rest_client.request(
                method, url, headers=sent, body=body, _request_timeout=self._timeout
            )
            data: bytes = await response.read()
            code = str(response.status)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise ApiError(0, "NoAnswer", f"the API server does not answer: {text}") from error
        finally:
            self._calls.api_called(verb, kind, code, time.monotonic() - started)
        if not 200 <= response.status < 300:
            raise _error(response.status, data)
        return data

    async def get(self, kind: str, namespace: str | None, name: str) -> Manifest:
        """One object."""
        return _object(await self.request("get", "GET", path(kind, namespace, name), kind))

    async def find(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """One object; None: there is none."""
        try:
            return await self.get(kind, namespace, name)
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> Listing:
        """All objects that match, each with its kind, and the version at which it was so: what is older and not among them
        is gone. With `metadata_only` from the API server's cache."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        if metadata_only:
            query["resourceVersion"] = "0"
        headers = {"Accept": METADATA_ONLY} if metadata_only else None
        data = await self.request(
            "list",
            "GET",
            path(kind, namespace),
            kind,
            {key: value for key, value in query.items() if value},
            headers=headers,
        )
        found = _object(data)
        items: list[Manifest] = found.get("items") or []
        for item in items:
            item["kind"] = kind
        return items, version_of(found)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; refused when there is one of that name, whoever's it is."""
        metadata = manifest["metadata"]
        where = path(manifest["kind"], metadata.get("namespace"))
        query = {"fieldManager": FIELD_MANAGER}
        return _object(await self.request("create", "POST", where, manifest["kind"], query, manifest))

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Server-side apply: the fields of `manifest` are ours, and those we no longer name are removed."""
        metadata, kind = manifest["metadata"], manifest["kind"]
        where = path(kind, metadata.get("namespace"), metadata["name"], subresource)
        headers = {"Content-Type": "application/apply-patch+yaml"}
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return _object(await self.request("patch", "PATCH", where, kind, query, manifest, headers))

    async def patch(self, kind: str, namespace: str, name: str, operations: Manifests) -> Manifest:
        """JSON patch of an object; refused when one of its tests fails."""
        headers = {"Content-Type": "application/json-patch+json"}
        query = {"fieldManager": FIELD_MANAGER}
        where = path(kind, namespace, name)
        return _object(await self.request("patch", "PATCH", where, kind, query, operations, headers))

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; refused when it has changed since it was read."""
        metadata, kind = manifest["metadata"], manifest["kind"]
        where = path(kind, metadata.get("namespace"), metadata["name"])
        return _object(await self.request("update", "PUT", where, kind, None, manifest))

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        """Delete an object, and in the background what it owns; nothing happens when it is gone already."""
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self.request("delete", "DELETE", path(kind, namespace, name), kind, None, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def log_tail(self, namespace: str, pod: str, container: str, lines: int = 5) -> str:
        """The last lines of a container's log before its last restart; empty when there are none."""
        query = {"container": container, "previous": "true", "tailLines": str(lines)}
        try:
            data = await self.request("get", "GET", path("Pod", namespace, pod, "log"), "PodLog", query)
        except ApiError:
            return ""
        return data.decode(errors="replace")

    async def serves(self, kind: str) -> bool:
        """Whether the cluster knows this kind."""
        api = KINDS[kind]
        try:
            found = _object(await self.request("get", "GET", api.root, "APIResourceList"))
        except ApiError as error:
            if error.missing:
                return False
            raise
        return any(resource.get("name") == api.plural for resource in found.get("resources") or ())


def proxy_of(url: str) -> str | None:
    """Proxy that the environment names for a URL; None: none."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Path of an object, or of all of a kind."""
    api = KINDS[kind]
    parts = [api.root]
    if api.namespaced and namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(api.plural)
    parts += [quote(part, safe="") for part in (name, subresource) if part]
    return "/".join(parts)


def version_of(document: Manifest) -> int:
    """Resource version of an object or a list as a number: they grow."""
    text = str((document.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def _object(data: bytes) -> Manifest:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(0, "NoJson", "the API server's answer is no JSON object")
    return found


def _error(status: int, data: bytes) -> ApiError:
    reason, message = "", data.decode(errors="replace")[:500]
    try:
        found: Any = json.loads(data)
        reason, message = str(found.get("reason") or ""), str(found.get("message") or message)
    except (ValueError, AttributeError):
        pass
    return ApiError(status, reason or str(status), message)
