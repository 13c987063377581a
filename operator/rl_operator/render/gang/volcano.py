"""Volcano: a PodGroup that says how many pods there are and what they take, and pods that name it."""

from __future__ import annotations

from typing import Any, Final

from rl_operator.model.gangs import pod_group_name
from rl_operator.render.gang.parts import Gang, Placement, PodParts

QUEUE_LABEL: Final = "volcano.sh/queue-name"
_PRIORITY_LABEL: Final = "ray.io/priority-class-name"
_GROUP: Final = "scheduling.k8s.io/group-name"
_TASK: Final = "volcano.sh/task-spec"


def volcano(gang: Gang, kind: str) -> Placement:
    """Labels as KubeRay reads them, and what it would do by them: so it may, but need not, be installed with
    `batchScheduler.name: volcano`."""
    name = pod_group_name(kind, gang.name)
    labels = {QUEUE_LABEL: gang.queue} if gang.queue else {}
    if gang.priority_class:
        labels[_PRIORITY_LABEL] = gang.priority_class
    spec: dict[str, Any] = {"minMember": gang.size, "minResources": gang.resources}
    spec |= {"queue": gang.queue} if gang.queue else {}
    spec |= {"priorityClassName": gang.priority_class} if gang.priority_class else {}
    return Placement(
        pods={
            member.group: PodParts(labels, {_GROUP: name, _TASK: member.group}, {"schedulerName": "volcano"})
            for member in gang.members
        },
        labels=labels,
        pod_group={
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": gang.metadata | {"name": name},
            "spec": spec,
        },
    )
