"""Objects of a cluster, read over a connection that stays open.

The scenarios look twice a second, each of several processes, on the cores on which everything runs that they look at: a
process of kubectl for each look takes forty times the processor time of a request on an open connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3

from rl_cli.cluster import Cluster as Connection

REQUEST_SECONDS: Final = 120.0
# Of a kind in namespaces, when none is named.
DEFAULT_NAMESPACE: Final = "default"
# As kubectl: a connection that broke, and a server that asks for a pause, are tried again; and one whose store was too slow
# for this request, of the thousands in which the scenarios wait for something.
_AGAIN: Final = urllib3.Retry(
    total=10,
    backoff_factor=0.5,
    backoff_max=10,
    status_forcelist=(500, 502, 503, 504),
    raise_on_status=False,
)
# Of a server that is perhaps away for good.
_ONCE_MORE: Final = _AGAIN.new(total=5, backoff_factor=0.2)


@dataclass(frozen=True)
class Resource:
    """What a kind is called in paths.

    Attributes:
        version: `apiVersion` of its objects.
        kind: `kind` of its objects.
        plural: its name in paths.
        namespaced: whether its objects are in namespaces.
    """

    version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str = "") -> str:
        """Path of all objects, of those of a namespace, or of one."""
        root = f"/{'apis' if '/' in self.version else 'api'}/{self.version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        return f"{root}{place}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


class Reader:
    """Reads what the cluster of a kubeconfig has; connects when it is first asked."""

    def __init__(self, kubeconfig: Path | None = None):
        self._kubeconfig = kubeconfig
        self._connection: Connection | None = None
        self._resources: dict[str, Resource] = {}

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None when it is not there.

        Raises:
            AssertionError: the cluster has no such kind, refuses, or does not answer.
        """
        found = self._read(self._resource(kind).path(namespace or DEFAULT_NAMESPACE, name))
        return None if found.status == 404 else _plain(self._parsed(found))

    def list(self, kinds: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Objects of one kind or several, comma-separated; of all namespaces when none is given.

        Raises:
            AssertionError: the cluster has no such kind, refuses, or does not answer.
        """
        objects = []
        for kind in kinds.split(","):
            resource = self._resource(kind)
            found = self._parsed(self._read(resource.path(namespace), selector))
            # Objects in a list do not say what they are.
            says = {"apiVersion": resource.version, "kind": resource.kind}
            objects += [says | _plain(each) for each in found["items"]]
        return objects

    def _resource(self, name: str) -> Resource:
        """The kind that kubectl understands by a name: `pod`, `pods`, `rlrun`, `pods.metrics.k8s.io`."""
        if name not in self._resources:
            self._resources = dict(self._discovered())
        assert name in self._resources, f"the cluster has no kind {name}"
        return self._resources[name]

    def _discovered(self) -> Iterator[tuple[str, Resource]]:
        """All names of all kinds. Later ones replace earlier ones: the core's come last, before them the first group's."""
        groups = self._parsed(self._read("/apis"))["groups"]
        for group in reversed(groups):
            preferred = group["preferredVersion"]["groupVersion"]
            versions = [
                each["groupVersion"] for each in group["versions"] if each["groupVersion"] != preferred
            ]
            for version in (*reversed(versions), preferred):
                yield from self._of_version(version, group["name"])
        yield from self._of_version("v1", "")

    def _of_version(self, version: str, group: str) -> Iterator[tuple[str, Resource]]:
        answer = self._read(Resource(version, "", "", False).path(None).rstrip("/"), again=_ONCE_MORE)
        if answer.status != 200:
            return  # another server's, which is away
        for each in self._parsed(answer)["resources"]:
            if "/" in each["name"]:
                continue
            resource = Resource(version, each["kind"], each["name"], each["namespaced"])
            for name in {
                each["name"],
                each.get("singularName") or each["kind"].lower(),
                *each.get("shortNames", ()),
            }:
                yield name, resource
                if group:
                    yield f"{name}.{group}", resource

    def _read(self, path: str, selector: str = "", again: urllib3.Retry = _AGAIN) -> urllib3.BaseHTTPResponse:
        if self._connection is None:
            self._connection = Connection.connect(str(self._kubeconfig) if self._kubeconfig else None)
        client, query = self._connection.api_client, [("labelSelector", selector)] if selector else []
        headers = {"Accept": "application/json"}
        # Each time anew: tokens expire.
        client.update_params_for_auth(headers, query, ["BearerToken"], path, "GET", None)
        where = f"{self._connection.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer: urllib3.BaseHTTPResponse = client.rest_client.pool_manager.request(
                "GET", where, headers=headers, timeout=REQUEST_SECONDS, retries=again
            )
        except urllib3.exceptions.HTTPError as error:
            raise AssertionError(f"GET {path}: {error}") from error
        return answer

    def _parsed(self, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        assert answer.status == 200, (
            f"GET {answer.url}: {answer.status} {answer.data.decode(errors='replace')[:1000]}"
        )
        found: dict[str, Any] = json.loads(answer.data)
        return found


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Without who wrote which field, which kubectl does not show either."""
    found["metadata"].pop("managedFields", None)
    return found
