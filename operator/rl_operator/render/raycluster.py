"""The Ray cluster of an attempt: a head, and one worker group per role."""

from __future__ import annotations

import json

from rl_operator.model.names import (
    HEAD,
    LEARNER,
    QUEUE_LABEL,
    SAMPLER,
    Manifest,
    attempt_labels,
    attempt_name,
)
from rl_operator.plan.effective import Effective
from rl_operator.plan.roles import Role
from rl_operator.render.pods import pod_template


def cluster_spec(effective: Effective, attempt: int) -> Manifest:
    """`spec` of a RayCluster, which is also `rayClusterSpec` of a RayJob."""
    head = effective.role(HEAD)
    return {
        "rayVersion": effective.settings.ray_version,
        "headGroupSpec": {
            "rayStartParams": _start_params(head),
            "template": pod_template(effective, head, attempt),
        },
        "workerGroupSpecs": [
            _worker_group(effective, effective.role(name), attempt)
            for name in (LEARNER, SAMPLER)
            if effective.has(name)
        ],
    }


def group_size(role: Role) -> tuple[int, int, int]:
    """Replicas of a worker group at the start, at least and at most.

    KubeRay begins the job when all pods are there that it was asked for: samplers above the fewest are asked for later
    (`rl_operator.decide.scaling`).
    """
    return role.at_start, role.at_start, role.replicas


def _worker_group(effective: Effective, role: Role, attempt: int) -> Manifest:
    replicas, least, most = group_size(role)
    return {
        "groupName": role.name,
        "replicas": replicas,
        "minReplicas": least,
        "maxReplicas": most,
        "rayStartParams": _start_params(role),
        "template": pod_template(effective, role, attempt),
    }


def _start_params(role: Role) -> dict[str, str]:
    """Options of `ray start`. Resources are given here and not in `resources` as well: KubeRay takes only one."""
    # Ray's shell sees the value, hence the quotes within quotes.
    resources = json.dumps({role.name: 1}, separators=(",", ":"))
    return {
        "num-cpus": str(role.ray_cpus),
        "num-gpus": str(role.accelerators),
        "resources": json.dumps(resources),
    }


def cluster_labels(effective: Effective, attempt: int) -> dict[str, str]:
    """Labels of the RayJob or RayCluster; a queue makes Kueue admit it."""
    labels = attempt_labels(effective.name, attempt)
    queue = effective.spec.scheduling.queue
    return labels | ({QUEUE_LABEL: queue} if queue else {})


def held_back(effective: Effective) -> Manifest:
    """Fields of a RayJob or RayCluster that a queue admits: no pod of it starts until somebody does.

    Where Kueue is, it sets this itself; where it is not, nobody takes a queue's name for an admission.
    """
    return {"suspend": True} if effective.spec.scheduling.queue is not None else {}


def ray_cluster(effective: Effective, attempt: int) -> Manifest:
    """The RayCluster of a run with `workload: Cluster`, on which people work by hand."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": effective.metadata(
            attempt_name(effective.name, attempt), cluster_labels(effective, attempt)
        ),
        "spec": {**held_back(effective), **cluster_spec(effective, attempt)},
    }
