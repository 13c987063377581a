"""Names of what makes the pods of an attempt a gang (`gang` of a profile). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rl_api.gang import GangScheduler

GANG_ANNOTATION: Final = "rltrain.dev/pod-group"
"""Of a RayJob or RayCluster: kind of the PodGroup that its attempt was made with, as `POD_GROUPS` calls it."""

POD_GROUP_LABEL: Final = "rltrain.dev/pod-group"
"""Of a pod: name of Kubernetes' PodGroup that the chart's admission policy makes it a member of."""

GATE: Final = "rltrain.dev/pod-group"
"""Scheduling gate of such a pod, which the policy takes away: without it the pod would be placed on its own."""

POD_GROUPS: Final[Mapping[GangScheduler, tuple[str, ...]]] = {
    "volcano": ("PodGroup.v1beta1.scheduling.volcano.sh",),
    "schedulerPlugins": ("PodGroup.v1alpha1.scheduling.x-k8s.io",),
    # Of Kubernetes 1.37 and of 1.36: what is written of it is the same.
    "kubernetes": ("PodGroup.v1alpha3.scheduling.k8s.io", "PodGroup.v1alpha2.scheduling.k8s.io"),
}
"""The PodGroups that we make, by scheduler, the newest first; KAI and YuniKorn make their own."""


def version_of_kind(kind: str) -> tuple[str, str]:
    """API group and version of a kind in `POD_GROUPS`."""
    _, version, group = kind.split(".", 2)
    return group, version


def pod_group_name(kind: str, ray: str) -> str:
    """Name of the PodGroup of this kind that belongs to the RayJob or RayCluster `ray`."""
    # KubeRay makes Volcano's under this name where it is told to, and leaves one that is there.
    return f"ray-{ray}-pg" if kind in POD_GROUPS["volcano"] else ray
