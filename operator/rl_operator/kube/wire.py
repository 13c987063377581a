"""What is said to an API server and what comes back, whoever carries it: paths, queries, errors, retries. Pure.

The operator carries it over aiohttp (`rl_operator.kube.client`), the command line over urllib3 (`rl_cli.cluster`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from rl_api.errors import RLTrainError
from rl_operator.model.gangs import POD_GROUPS, version_of_kind
from rl_operator.model.names import Manifest
from rl_operator.model.nesting import loads


@dataclass(frozen=True)
class Kind:
    """Where the API server keeps a kind of objects."""

    group: str
    version: str
    plural: str
    namespaced: bool = True


KINDS: Final[Mapping[str, Kind]] = {
    "RLTrainingRun": Kind("rltrain.dev", "v1alpha1", "rltrainingruns"),
    "RLTrainingProfile": Kind("rltrain.dev", "v1alpha1", "rltrainingprofiles", namespaced=False),
    "RLPolicyService": Kind("rltrain.dev", "v1alpha1", "rlpolicyservices"),
    "RayJob": Kind("ray.io", "v1", "rayjobs"),
    "RayService": Kind("ray.io", "v1", "rayservices"),
    "RayCluster": Kind("ray.io", "v1", "rayclusters"),
    "Workload": Kind("kueue.x-k8s.io", "v1beta2", "workloads"),
    "ResourceFlavor": Kind("kueue.x-k8s.io", "v1beta2", "resourceflavors", namespaced=False),
    "ClusterQueue": Kind("kueue.x-k8s.io", "v1beta2", "clusterqueues", namespaced=False),
    "WorkloadPriorityClass": Kind("kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", namespaced=False),
    "PriorityClass": Kind("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
    "Gateway": Kind("gateway.networking.k8s.io", "v1", "gateways"),
    "Pod": Kind("", "v1", "pods"),
    "Event": Kind("", "v1", "events"),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Secret": Kind("", "v1", "secrets"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets"),
    "ResourceClaimTemplate": Kind("resource.k8s.io", "v1", "resourceclaimtemplates"),
    "Namespace": Kind("", "v1", "namespaces", namespaced=False),
    "Node": Kind("", "v1", "nodes", namespaced=False),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
    **{kind: Kind(*version_of_kind(kind), "podgroups") for kinds in POD_GROUPS.values() for kind in kinds},
}
"""The kinds that operator and command line deal with. One of which there are several is called by version and group too."""

APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"

PAGE: Final = 50
"""Objects that are asked for at once: an answer is held in memory whole, there and here, and one object may take 1.5 MB."""

BREATH_SECONDS: Final = 0.2
"""The shortest pause before the same is asked again, whatever a server or a proxy between says."""

WATCH_SECONDS: Final = 60
"""The API server ends a watch after so long; silence for longer means that the connection is dead."""


class ApiError(RLTrainError):
    """The API server refused a request, or did not answer: then `status` is 0."""

    def __init__(
        self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details = status, reason, message, details or {}

    @property
    def missing(self) -> bool:
        """Whether the object, or its kind, is not there."""
        return self.status == 404

    @property
    def forbidden(self) -> bool:
        """Whether nobody has given the right to it."""
        return self.status == 403

    @property
    def conflict(self) -> bool:
        """Whether the object is not, or is no longer, what the request took it for."""
        return self.status == 409

    @property
    def gone(self) -> bool:
        """Whether a list or a watch wants to go on where the API server has forgotten what was."""
        return self.status == 410

    @property
    def passing(self) -> bool:
        """Whether trying again may help: no answer, or a server that is in trouble."""
        return self.status in (0, 429) or self.status >= 500

    @property
    def causes(self) -> list[dict[str, Any]]:
        """What exactly is wrong, where the API server says so."""
        return self.details.get("causes") or []


def parsed(data: bytes | str) -> Manifest:
    """An answer's JSON object, without what lies too deep in it: one odd object in a list must not hide the others.

    Raises:
        ApiError: it is none.
    """
    try:
        found = loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(0, "NoJson", "the API server's answer is no JSON object")
    return found


def refusal(status: int, body: str) -> ApiError:
    """What an answer other than success says: a Kubernetes `Status`, or anything."""
    try:
        answer = parsed(body)
    except ApiError:
        answer = {}
    message = str(answer.get("message") or body[:500] or f"status {status}")
    return ApiError(status, str(answer.get("reason") or status), message, answer.get("details"))


def retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds after which a busy API server wants to be asked again; None: it has answered."""
    text = headers.get("Retry-After", "")
    return max(float(text), BREATH_SECONDS) if status in (429, 503) and text.isdecimal() else None


def root(version: str) -> str:
    """Path of an `apiVersion`."""
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def kind_of(manifest: Mapping[str, Any]) -> str:
    """What the kind of an object is called in `KINDS`."""
    kind = str(manifest["kind"])
    group, _, version = str(manifest.get("apiVersion") or "").partition("/")
    return kind if kind in KINDS else f"{kind}.{version}.{group}"


def path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Path of an object, or of all of a kind."""
    api = KINDS[kind]
    place = ["namespaces", namespace] if api.namespaced and namespace else []
    parts = [*place, api.plural, name, subresource]
    base = root(f"{api.group}/{api.version}" if api.group else api.version)
    return "/".join([base, *(quote(part, safe="") for part in parts if part)])


def watch_query(version: str) -> dict[str, str]:
    """What a watch asks for that begins after `version`. Bookmarks keep the place where nothing happens."""
    return {
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(WATCH_SECONDS),
    }


def watch_event(line: bytes | str) -> tuple[str, Manifest]:
    """A line of a watch as (ADDED, MODIFIED, DELETED or BOOKMARK; object).

    Raises:
        ApiError: the watch ends with an error (`gone`: its beginning is forgotten), or the line is no event.
    """
    try:
        event = parsed(line)
        change, found = str(event["type"]), dict(event["object"])
        if change != "ERROR":
            return change, found | {"metadata": dict(found["metadata"])}
        code = int(found.get("code") or 0)
    except (ApiError, ValueError, KeyError, TypeError) as error:
        raise ApiError(0, "BrokenEvent", "the API server sent a broken event") from error
    raise refusal(code, json.dumps(found))


def version_of(document: Mapping[str, Any]) -> int:
    """Resource version of an object or a list as a number: they grow."""
    text = str((document.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0
