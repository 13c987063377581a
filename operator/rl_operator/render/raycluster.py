"""The Ray cluster of an attempt: a head, and one worker group per role."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rl_operator.model.names import (
    BEGAN_ANNOTATIONS,
    HEAD,
    PROFILE_ANNOTATION,
    QUEUE_LABEL,
    Manifest,
    secret_name,
)
from rl_operator.plan.effective import Effective
from rl_operator.plan.roles import Role
from rl_operator.render.pods import pod_template


def cluster_spec(effective: Effective, attempt: int) -> Manifest:
    """`spec` of a RayCluster, which is also `rayClusterSpec` of a RayJob."""
    head = effective.role(HEAD)
    return guarded_cluster(
        effective.settings.ray_version,
        secret_name(effective.name, effective.uid, attempt),
        start_params(head.name, head.ray_cpus, head.accelerators),
        pod_template(effective, head, attempt),
        [
            # KubeRay begins the job when all pods are there that it was asked for: samplers above the fewest are asked for
            # later (`rl_operator.decide.scaling`).
            worker_group(role, role.at_start, pod_template(effective, role, attempt))
            for role in effective.roles
            if role.name != HEAD
        ],
    )


def guarded_cluster(
    ray_version: str, secret: str, head_params: dict[str, str], head: Manifest, groups: list[Manifest]
) -> Manifest:
    """`spec` of a RayCluster that answers nobody without the token in `secret`; `head`: the template of its pod."""
    return {
        "rayVersion": ray_version,
        # With it KubeRay shows the token where it submits and watches the job; the pods have it from their templates.
        "authOptions": {"mode": "token", "secretName": secret},
        "headGroupSpec": {"rayStartParams": head_params, "template": head},
        "workerGroupSpecs": groups,
    }


def worker_group(role: Role, fewest: int, template: Manifest) -> Manifest:
    """The pods of a role, of which `fewest` are asked for. KubeRay makes as many pods for each replica as it has hosts, and
    makes all of them anew where one is lost."""
    return {
        "groupName": role.name,
        "replicas": fewest // role.hosts,
        "minReplicas": fewest // role.hosts,
        "maxReplicas": role.replicas // role.hosts,
        **({"numOfHosts": role.hosts} if role.hosts > 1 else {}),
        "rayStartParams": start_params(role.name, role.ray_cpus, role.accelerators),
        "template": template,
    }


def start_params(role: str, cpus: int, accelerators: int) -> dict[str, str]:
    """Options of `ray start` on a pod of this role. Resources are given here and not in `resources` as well: KubeRay takes
    only one."""
    # Ray's shell sees the value, hence the quotes within quotes.
    resources = json.dumps({role: 1}, separators=(",", ":"))
    return {
        "num-cpus": str(cpus),
        "num-gpus": str(accelerators),
        "resources": json.dumps(resources),
    }


def ray_metadata(
    effective: Effective, attempt: int, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """Metadata of the RayJob or RayCluster; the label of a queue makes Kueue admit it."""
    queue = effective.queue if effective.labelled else None
    began = {BEGAN_ANNOTATIONS[name]: fact for name, fact in effective.began.items()}
    if effective.spec.profile is not None:
        began[PROFILE_ANNOTATION] = effective.spec.profile
    metadata = effective.attempt_metadata(attempt, {QUEUE_LABEL: queue} if queue else {})
    return metadata | {"annotations": {**began, **(annotations or {})}}


def held_back(effective: Effective) -> Manifest:
    """Fields of a RayJob or RayCluster that a queue admits by its label: no pod of it starts until somebody does.

    Where Kueue is, it sets this itself; where it is not, nobody takes a queue's name for an admission.
    """
    return {"suspend": True} if effective.labelled else {}


def ray_cluster(effective: Effective, attempt: int) -> Manifest:
    """The RayCluster of a run with `workload: Cluster`, on which people work by hand."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": ray_metadata(effective, attempt),
        "spec": {**held_back(effective), **cluster_spec(effective, attempt)},
    }
