"""Coscheduling of Kubernetes' scheduler-plugins: a PodGroup, and pods that name it in a label."""

from __future__ import annotations

from typing import Final

from rl_operator.render.gang.parts import Gang, Placement, PodParts

_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"

SCHEDULER: Final = "scheduler-plugins-scheduler"
"""Name of the second scheduler that the chart of scheduler-plugins installs."""


def scheduler_plugins(gang: Gang) -> Placement:
    """All of it is ours: KubeRay's plug-in for it takes RayClusters only, and lets no RayJob begin where it is chosen."""
    pod = PodParts({_GROUP_LABEL: gang.name}, {}, {"schedulerName": SCHEDULER})
    return Placement(
        pods={member.group: pod for member in gang.members},
        pod_group={
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": gang.metadata,
            "spec": {"minMember": gang.size, "minResources": gang.resources},
        },
    )
