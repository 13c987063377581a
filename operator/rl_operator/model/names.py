"""Names, labels and owners of everything that belongs to a run."""

from __future__ import annotations

import hashlib
from typing import Any, Final

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""

RUN_LABEL: Final = "rltrain.dev/run"
ATTEMPT_LABEL: Final = "rltrain.dev/attempt"
ROLE_LABEL: Final = "rltrain.dev/role"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
MANAGED_BY: Final = "rltrain-operator"
MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={MANAGED_BY}"
"""Selects every object of every run."""

HASH_ANNOTATION: Final = "rltrain.dev/manifest"
"""Hash of an object as rendered: another one means that it must be written again."""

LONGEST_RAY_JOB: Final = 47
"""KubeRay refuses longer names, as it adds to them."""

API_VERSION: Final = "rltrain.dev/v1alpha1"
KIND: Final = "RLTrainingRun"

RAY_PORTS: Final = {"gcs": 6379, "dashboard": 8265, "client": 10001}
"""Ports of the Ray head."""

STATUS_PORT: Final = "status"
"""Name of the port of the driver's status server."""

HEAD, SAMPLER, LEARNER = "head", "sampler", "learner"


def shorten(name: str, limit: int) -> str:
    """`name` in at most `limit` characters: a long one loses its end, for which a hash of the whole stands in."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: limit - 7].rstrip('-')}-{digest}"


def attempt_name(run: str, number: int) -> str:
    """Name of an attempt's RayJob (or RayCluster) and ConfigMap."""
    suffix = f"-{number}"
    return shorten(run, LONGEST_RAY_JOB - len(suffix)) + suffix


def folder_name(run: str, uid: str) -> str:
    """Folder of a run where several keep theirs: a later run of the same name begins anew."""
    return f"{run}-{uid[:8]}"


def secret_name(run: str) -> str:
    """Name of the Secret with the token of the driver's status server."""
    return f"{run}-status"


def run_labels(run: str) -> dict[str, str]:
    """Labels of every object of a run."""
    return {
        "app.kubernetes.io/name": "rltrain",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        RUN_LABEL: run,
    }


def attempt_labels(run: str, number: int) -> dict[str, str]:
    """Labels of every object of one attempt."""
    return run_labels(run) | {ATTEMPT_LABEL: str(number)}


def pod_labels(run: str, number: int, role: str) -> dict[str, str]:
    """Labels of a pod."""
    return attempt_labels(run, number) | {ROLE_LABEL: role}


def owned(run: str, namespace: str, uid: str, name: str, labels: dict[str, str]) -> Manifest:
    """Metadata of an object of a run: the object goes when the run goes."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": run, "uid": uid}
    return {
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
    }
