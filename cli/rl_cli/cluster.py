"""The cluster as the command line sees it: requests with a deadline, whose failures are sentences."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
import yaml
from kubernetes import client, config

from rl_api.base import API_VERSION
from rl_api.errors import InvalidConfig
from rl_cli.failures import NOT_INSTALLED, ClusterError, failure, unreachable
from rl_operator.kube.wire import (
    APPLY,
    PAGE,
    WATCH_SECONDS,
    ApiError,
    parsed,
    path,
    retry_after,
    root,
    watch_event,
    watch_query,
)
from rl_operator.model.names import KIND, RUN_LABEL, SERVICE_KIND, Manifest
from rl_operator.render.pods import CONTAINER

MANAGER: Final = "rltrain"
"""Name under which the command line writes fields of objects."""

_REQUEST_SECONDS: Final = 15.0


class Cluster:
    """A connection to an API server."""

    def __init__(self, api_client: client.ApiClient, namespace: str) -> None:
        """`namespace` is the one meant where none is named."""
        self.api_client, self.namespace = api_client, namespace
        self._kinds: dict[str, dict[str, Manifest]] = {}
        self.host = str(api_client.configuration.host).rstrip("/")

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Cluster:
        """Connect as kubectl does; in a pod without a kubeconfig as the pod's service account.

        Raises:
            InvalidConfig: there is no usable kubeconfig, or it has no such context.
        """
        settings = client.Configuration()
        settings.retries = False
        named = kubeconfig or os.environ.get("KUBECONFIG") or ""
        files = [Path(part).expanduser() for part in (named or "~/.kube/config").split(os.pathsep) if part]
        if not any(file.is_file() for file in files):
            if not named and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                return cls._of_this_pod(settings)
            looked = " and ".join(str(file) for file in files)
            raise InvalidConfig(
                f"no kubeconfig: there is no {looked}; name one with --kubeconfig or KUBECONFIG"
            )
        text = os.pathsep.join(str(file) for file in files)
        try:
            contexts, current = config.list_kube_config_contexts(text)
            known = {str(one["name"]): one["context"] for one in contexts}
            if context is not None and context not in known:
                raise InvalidConfig(f"--context: found {context!r}, allowed: {', '.join(sorted(known))}")
            chosen = known[context] if context is not None else current["context"]
            config.load_kube_config(text, context, settings, persist_config=False)
        except (config.ConfigException, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(f"{text}: not a usable kubeconfig: {str(error).splitlines()[0]}") from error
        namespace = chosen.get("namespace") if isinstance(chosen, Mapping) else None
        return cls(client.ApiClient(settings), str(namespace or "default"))

    @classmethod
    def _of_this_pod(cls, settings: client.Configuration) -> Cluster:
        try:
            config.load_incluster_config(client_configuration=settings)
            namespace = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
        except (config.ConfigException, OSError) as error:
            raise InvalidConfig(
                f"no kubeconfig: there is no ~/.kube/config, and this pod has no service account: {error}"
            ) from error
        return cls(client.ApiClient(settings), namespace)

    def run(self, namespace: str, name: str) -> Manifest:
        """A run. Raises ClusterError, also where there is none."""
        return self._json(self._open("GET", path(KIND, namespace, name)))

    def service(self, namespace: str, name: str) -> Manifest:
        """A policy service. Raises ClusterError, also where there is none."""
        return self._json(self._open("GET", path(SERVICE_KIND, namespace, name)))

    def listed(
        self, kind: str, namespace: str | None, name: str | None = None, *, page: int = PAGE
    ) -> tuple[list[Manifest], str]:
        """All objects of a kind in a namespace (None: in all), or the one called `name`; and the version to watch from.

        `page`: objects of one answer.
        """
        query = {"fieldSelector": f"metadata.name={name}"} if name else {}
        return self._list(path(kind, namespace), query, page)

    def profiles(self) -> list[Manifest]:
        """All profiles."""
        return self._list(path("RLTrainingProfile"))[0]

    def changes(
        self, kind: str, namespace: str | None, version: str, name: str | None = None
    ) -> Iterator[tuple[str, Manifest]]:
        """What happens to objects of a kind from `version` on, as (ADDED, MODIFIED, DELETED or BOOKMARK; object).

        Ends now and then without a fault; begin again where it ended.

        Raises:
            ClusterError: the connection broke, or `version` is too old (`gone`).
        """
        query = watch_query(version) | ({"fieldSelector": f"metadata.name={name}"} if name else {})
        where = path(kind, namespace)
        for line in self._lines(where, query, WATCH_SECONDS + _REQUEST_SECONDS):
            if not line:
                continue
            try:
                yield watch_event(line)
            except ApiError as error:
                known = failure(where, error.status, error.message) if error.status else None
                raise known or ClusterError(error.message) from error

    def namespaced(self, manifest: Manifest) -> bool:
        """Whether objects of this kind are in namespaces. Raises ClusterError where the cluster knows no such kind."""
        return bool(self._resource(manifest)["namespaced"])

    def apply(self, manifest: Manifest, force: bool = False) -> bool:
        """Server-side apply; conflicts with what others wrote are refused, or forced. Returns whether it is new."""
        metadata, resource = manifest["metadata"], self._resource(manifest)
        place = f"/namespaces/{quote(metadata['namespace'], safe='')}" if resource["namespaced"] else ""
        where = f"{root(manifest['apiVersion'])}{place}/{resource['name']}/{quote(metadata['name'], safe='')}"
        query = {"fieldManager": MANAGER} | ({"force": "true"} if force else {})
        response = self._open("PATCH", where, query, manifest, APPLY)
        self._json(response)
        return response.status == 201

    def _resource(self, manifest: Manifest) -> Manifest:
        """What the API server says of the kind of an object."""
        version, kind = str(manifest["apiVersion"]), manifest["kind"]
        if version not in self._kinds:
            try:
                found = self._json(self._open("GET", root(version))).get("resources") or []
            except ClusterError as error:
                if not error.missing and error.status != NOT_INSTALLED:
                    raise
                found = []
            # Subresources have a slash in their name.
            self._kinds[version] = {str(one["kind"]): one for one in found if "/" not in str(one["name"])}
        if kind in self._kinds[version]:
            return self._kinds[version][kind]
        if version == API_VERSION:
            raise failure(path(kind), 404, "")
        raise ClusterError(f"the cluster knows no {kind} of {version}")

    def patch_run(self, namespace: str, name: str, change: Mapping[str, Any]) -> Manifest:
        """Change fields of a run."""
        query = {"fieldManager": MANAGER}
        where = path(KIND, namespace, name)
        return self._json(self._open("PATCH", where, query, change, "application/merge-patch+json"))

    def delete_run(self, namespace: str, name: str, uid: str) -> None:
        """Delete the run with this uid; a later one of the same name is left alone."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        self._json(self._open("DELETE", path(KIND, namespace, name), None, body))

    def pods(self, namespace: str, run: str) -> list[Manifest]:
        """All pods of a run."""
        return self._list(path("Pod", namespace), {"labelSelector": f"{RUN_LABEL}={run}"})[0]

    def log(self, namespace: str, pod: str, *, follow: bool, tail: int | None) -> Iterator[bytes]:
        """Lines of a pod's log; with `follow` until it ends."""
        query = {"container": CONTAINER}
        query |= {"follow": "true"} if follow else {}
        query |= {"tailLines": str(tail)} if tail is not None else {}
        # Nobody knows when a container writes its next line.
        timeout = None if follow else _REQUEST_SECONDS
        yield from self._lines(path("Pod", namespace, pod, "log"), query, timeout)

    def _list(
        self, where: str, query: Mapping[str, str] | None = None, page: int = PAGE
    ) -> tuple[list[Manifest], str]:
        """Everything, page by page, and the version at which it was so."""
        asked = {**(query or {}), "limit": str(page)}
        items: list[Manifest] = []
        while True:
            found = self._json(self._open("GET", where, asked))
            items += found.get("items") or []
            metadata = found.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            asked["continue"] = metadata["continue"]

    def _json(self, response: urllib3.BaseHTTPResponse) -> Manifest:
        """The object that the server answers with."""
        text = self._text(response)
        try:
            return parsed(text)
        except ApiError as error:
            raise ClusterError(
                f"the server {self.host} does not answer like a Kubernetes API server"
            ) from error

    def _text(self, response: urllib3.BaseHTTPResponse) -> str:
        try:
            return response.data.decode(errors="replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self.host, error, _REQUEST_SECONDS) from error

    def _lines(self, path: str, query: Mapping[str, str], timeout: float | None) -> Iterator[bytes]:
        """The lines of an answer as they come; `timeout` is the most seconds between two."""
        response = self._open("GET", path, query, timeout=timeout)
        try:
            yield from (line.removesuffix(b"\n") for line in response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(self.host, error, timeout or 0.0) from error
        finally:
            response.close()  # not given back: there may be more to come on it

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
        *,
        timeout: float | None = _REQUEST_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        """The answer, of which only the head is read yet; `timeout` is for its body."""
        began = time.monotonic()
        while True:
            # Each time anew: tokens expire.
            headers = {"Accept": "application/json", "User-Agent": MANAGER}
            queries = list((query or {}).items())
            headers |= {"Content-Type": content} if body is not None else {}
            sent = time.monotonic()
            try:
                self.api_client.update_params_for_auth(headers, queries, ["BearerToken"], path, method, body)
                response: urllib3.BaseHTTPResponse = self.api_client.rest_client.pool_manager.request(
                    method,
                    f"{self.host}{path}{'?' + urlencode(queries) if queries else ''}",
                    body=json.dumps(body) if body is not None else None,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=_REQUEST_SECONDS, read=timeout),
                    preload_content=False,
                    retries=False,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(self.host, error, time.monotonic() - sent) from error
            pause = retry_after(response.status, response.headers)
            if pause is None or time.monotonic() - began + pause > _REQUEST_SECONDS:
                break
            response.drain_conn()
            time.sleep(pause)
        if not 200 <= response.status < 300:
            raise failure(path, response.status, self._text(response))
        return response
