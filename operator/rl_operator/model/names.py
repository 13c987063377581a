"""Names, labels and owners of everything that belongs to a run."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from rl_api.base import API_VERSION
from rl_api.task import WORKERS, role_of

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""

Key = tuple[str, str]
"""Namespace and name of a run, or of a service."""

RUN_LABEL: Final = "rltrain.dev/run"
ATTEMPT_LABEL: Final = "rltrain.dev/attempt"
ROLE_LABEL: Final = "rltrain.dev/role"
PODS_ANNOTATION: Final = "rltrain.dev/pods"
"""Of a Workload: hash of its pods, which Kueue lets nobody change while it has quota."""

SAMPLERS_LABEL: Final = "rltrain.dev/samplers"
"""Of a Workload: which part of a run's samplers above the fewest it stands for."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
MANAGED_BY: Final = "rltrain-operator"
MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={MANAGED_BY}"
"""Selects every object of every run."""

HASH_ANNOTATION: Final = "rltrain.dev/manifest"
"""Hash of an object as rendered: another one means that it must be written again."""

BEGAN_ANNOTATIONS: Final = {
    "image": "rltrain.dev/image",
    "spec_hash": "rltrain.dev/spec-hash",
    "profile_hash": "rltrain.dev/profile-hash",
}
"""What a RayJob or RayCluster says of the attempt that began with it, should its operator die before the status does."""

PROFILE_ANNOTATION: Final = "rltrain.dev/profile"
"""Name of the profile under which an attempt has begun, or a service has its pods."""

LONGEST_RAY_JOB: Final = 47
"""KubeRay refuses longer names, as it adds to them."""

KIND: Final = "RLTrainingRun"

SERVICE_KIND: Final = "RLPolicyService"
SERVICE_LABEL: Final = "rltrain.dev/service"

CODE_CONTAINER: Final = "user-code"
"""The container of code of the user's, behind Ray's, with `task.isolation: strict`."""

RAY_PORTS: Final = {"gcs": 6379, "dashboard": 8265, "client": 10001}
"""Ports of the Ray head."""

STATUS_PORT: Final = "status"
"""Name of the port of the driver's status server."""

HEAD, SAMPLER, LEARNER = "head", "sampler", "learner"

SIMULATOR: Final = role_of("simulator")
REWARD_MODEL: Final = role_of("reward model")

TASK_WORKERS: Final = {role_of(kind): f"task.{field}" for kind, field in WORKERS.items()}
"""Roles of workers of the task, and where in a spec each is described."""

REPLACED: Final = (SAMPLER, *TASK_WORKERS)
"""Roles whose pods an attempt can lose, and gets others for."""


def field_of(role: str) -> tuple[str, ...]:
    """Where in a spec a role is described."""
    described = {HEAD: "trainer", **TASK_WORKERS}
    return ("spec", *described.get(role, role).split("."))


REPLICA, PREFILL = "replica", "prefill"
"""Of a service: copies that answer, and those that compute prompts for them."""


def shorten(name: str, limit: int) -> str:
    """`name` in at most `limit` characters: a long one loses its end, for which a hash of the whole stands in."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: limit - 7].rstrip('-')}-{digest}"


def digest_of(document: object) -> str:
    """Short hash of plain data, by which a later one is told from it."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def attempt_name(run: str, number: int) -> str:
    """Name of an attempt's RayJob (or RayCluster) and ConfigMap."""
    suffix = f"-{number}"
    return shorten(run, LONGEST_RAY_JOB - len(suffix)) + suffix


def folder_name(run: str, uid: str) -> str:
    """Folder of a run where several keep theirs: a later run of the same name begins anew."""
    return f"{run}-{uid[:8]}"


def weights_folder_name(run: str, uid: str) -> str:
    """Folder of a run's weights in the claim of a server outside of it. Beside the run's own, never in it: one claim may be
    for both, and samplers, where code of the user's may run, must not see checkpoints."""
    return f"{folder_name(run, uid)}.weights"


def samplers_workload_name(run: str, part: int) -> str:
    """Name of the Workload of a part of a run's samplers above the fewest. No run has it: their names have no dot."""
    return f"{run}.samplers.{part}"


def server_policy_name(run: str) -> str:
    """Name of the NetworkPolicy by which samplers reach a server outside the run. No run has it: their names have no dot."""
    return f"{run}.server"


def secret_name(run: str, uid: str, number: int) -> str:
    """Name of the Secret with an attempt's tokens. None of an earlier run has it, whose objects may still be there."""
    return f"{attempt_name(run, number)}-{uid[:8]}"


def earlier_secret_name(run: str) -> str:
    """Name of the Secret that operators up to 0.1 made, with a random token for all attempts of a run."""
    return f"{run}-status"


def labels_of(run: str, attempt: int | None = None, role: str = "") -> dict[str, str]:
    """Labels of an object of a run, of one of its attempts, or of a pod of that."""
    labels = {"app.kubernetes.io/name": "rltrain", "app.kubernetes.io/managed-by": MANAGED_BY, RUN_LABEL: run}
    if attempt is not None:
        labels[ATTEMPT_LABEL] = str(attempt)
    if role:
        labels[ROLE_LABEL] = role
    return labels


def service_object_name(service: str) -> str:
    """Name of what a service has beside its RayService. No run's object has it: their names have no dot."""
    return f"{service}.service"


def service_labels(service: str, role: str = "") -> dict[str, str]:
    """Labels of an object of a service, or of a pod of it."""
    labels = {
        "app.kubernetes.io/name": "rltrain",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        SERVICE_LABEL: service,
    }
    return labels | {ROLE_LABEL: role} if role else labels


def owned(
    run: str, namespace: str, uid: str, name: str, labels: dict[str, str], kind: str = KIND
) -> Manifest:
    """Metadata of an object of a run, or of another `kind` of ours: the object goes when that goes."""
    reference = {"apiVersion": API_VERSION, "kind": kind, "name": run, "uid": uid}
    return {
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
    }
