"""Kueue's Workload of a run: what it asks its queue for, and, one by one, samplers above the fewest.

Samplers above the fewest are Workloads of their own, of a priority below that of every run: the queue gives and takes them
while the learner trains on. Kueue's other ways were tried: partial admission (`minCount`) chooses a number once, and never
again while the run goes on; elastic slices replace a Workload by a larger one, and are evicted as a whole, learner and all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rl_operator.model.names import (
    PODS_ANNOTATION,
    SAMPLER,
    SAMPLERS_LABEL,
    Manifest,
    digest_of,
    labels_of,
    owned,
    samplers_workload_name,
)
from rl_operator.model.seen import QueuePriority
from rl_operator.model.workload import Placed
from rl_operator.plan.effective import Effective
from rl_operator.plan.roles import Role
from rl_operator.render.pods import pod_template
from rl_operator.render.topology import pod_set_topology

MOST_PARTS: Final = 16
"""Workloads at most for a run's samplers above the fewest: where there are more samplers, several share one."""

BELOW: Final = 1_000_000_000
"""What the priority of samplers above the fewest lies below that of their run: below all that runs cannot do without."""

_LOWEST: Final = -(2**31)

_OF_NODES: Final = (
    *("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priorityClassName"),
    *("resourceClaims", "topologySpreadConstraints"),
)
"""Fields of a pod by which Kueue chooses a flavor, or counts what a pod takes."""

_NOT_QUEUED: Final = "ephemeral-storage"
"""Kueue admits nothing that asks for a resource of which its queue knows nothing, and queues know nothing of disks: what of
these a run may have is for its profile to say."""


def run_workload(effective: Effective, priority: QueuePriority) -> Manifest:
    """The run with its fewest samplers: all of it is admitted at once, or nothing."""
    pod_sets = [{**_pod_set(effective, role), "count": role.at_start} for role in effective.roles]
    return _workload(effective, effective.name, {}, pod_sets, priority)


def sampler_workloads(
    effective: Effective, priority: QueuePriority, placed: Placed, counts: Mapping[int, int]
) -> list[Manifest]:
    """Samplers above the fewest, of which the queue may give some parts and not others; on the flavor (`placed`) of those
    that the run has: they are one worker group. `counts`: samplers of each part."""
    if not effective.has(SAMPLER):
        return []
    role = effective.role(SAMPLER)
    below = replace(priority, value=max(priority.value - BELOW, _LOWEST), reference=None)
    pod_set = _pod_set(effective, replace(role, placed=placed))
    return [
        _workload(
            effective,
            samplers_workload_name(effective.name, part),
            {SAMPLERS_LABEL: str(part)},
            [{**pod_set, "count": count}],
            below,
        )
        for part, count in counts.items()
    ]


def parts(count: int, held: Mapping[int, int]) -> dict[int, int]:
    """Samplers of each part, by its number, where there are to be so many above the fewest in `MOST_PARTS` parts at most.

    `held`: those of parts that have their quota, of which nothing can be changed. As many stay as they are as leave room for
    the rest: another number of samplers gives back no more quota than it must.
    """
    size, found, left = math.ceil(count / MOST_PARTS), dict[int, int](), max(count, 0)
    for part, has in sorted(held.items()):
        if 0 < has <= left and left - has <= size * (MOST_PARTS - len(found) - 1):
            found[part], left = has, left - has
    for part in range(MOST_PARTS):
        if left and part not in found:
            found[part] = min(size, left)
            left -= found[part]
    return dict(sorted(found.items()))


def _workload(
    effective: Effective,
    name: str,
    labels: Mapping[str, str],
    pod_sets: list[Manifest],
    priority: QueuePriority,
) -> Manifest:
    spec: dict[str, Any] = {
        "queueName": effective.queue,
        "priority": priority.value,
        "podSets": pod_sets,
    }
    if priority.reference is not None:
        spec["priorityClassRef"] = dict(priority.reference)
    all_labels = labels_of(effective.name) | dict(labels)
    metadata = owned(effective.name, effective.namespace, effective.uid, name, all_labels)
    metadata["annotations"] = {PODS_ANNOTATION: digest_of([effective.queue, pod_sets])}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec,
    }


def _pod_set(effective: Effective, role: Role) -> Manifest:
    """A role's pods, but for how many there are."""
    pod = pod_template(effective, role, 1)["spec"]
    spec = {key: pod[key] for key in _OF_NODES if key in pod}
    for key in ("initContainers", "containers"):
        if key in pod:
            spec[key] = [{"name": one["name"], "resources": _counted(one)} for one in pod[key]]
    topology = pod_set_topology(role)
    return {
        "name": role.name,
        "template": {"spec": spec},
        **({"topologyRequest": topology} if topology else {}),
    }


def _counted(container: Mapping[str, Any]) -> Manifest:
    resources = container.get("resources") or {}
    found: Manifest = {
        key: {name: amount for name, amount in (resources.get(key) or {}).items() if name != _NOT_QUEUED}
        for key in ("requests", "limits")
        if resources.get(key)
    }
    if claims := resources.get("claims"):
        found["claims"] = claims
    return found
