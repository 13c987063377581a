"""A gang, and what a scheduler wants to find of it: plain values, the same for all schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rl_api.base import amount
from rl_operator.model.names import Manifest


@dataclass(frozen=True)
class Member:
    """Pods of one group of a Ray cluster."""

    group: str
    """Name of the worker group; of the head's that by which KubeRay calls it."""
    count: int
    """Pods with which the attempt begins."""
    template: Manifest

    @property
    def resources(self) -> dict[str, Decimal]:
        """What one of the pods asks for."""
        asked: Counter[str] = Counter()
        for container in self.template["spec"]["containers"]:
            limits = container["resources"].get("limits", {})
            for name, quantity in (limits | container["resources"].get("requests", {})).items():
                asked[name] += amount(quantity)  # type: ignore[assignment]
        return dict(asked)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Gang:
    """All pods with which an attempt begins. Samplers above the fewest come later, each on its own."""

    name: str
    """Of the attempt, which is that of its RayJob or RayCluster."""
    metadata: Manifest
    """Of an object of the attempt with that name."""
    uid: str
    """Of the run."""
    preemptions: int
    """Gangs that the attempt had before this one."""
    members: tuple[Member, ...]
    queue: str | None
    priority_class: str | None

    @property
    def size(self) -> int:
        """Number of pods."""
        return sum(member.count for member in self.members)

    @property
    def resources(self) -> dict[str, str]:
        """What all of them ask for together."""
        asked: Counter[str] = Counter()
        for member in self.members:
            for name, one in member.resources.items():
                asked[name] += one * member.count  # type: ignore[assignment]
        return {name: written(whole) for name, whole in sorted(asked.items())}  # type: ignore[arg-type]


@dataclass(frozen=True)
class PodParts:
    """What is added to the template of a pod."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """What makes the pods of an attempt a gang of one scheduler."""

    pods: Mapping[str, PodParts]
    """By group."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the RayJob or RayCluster, which KubeRay takes over to its pods where it works with this scheduler."""
    pod_group: Manifest | None = None
    """An object of the scheduler's that has to be there; its pods wait for it."""


def written(quantity: Decimal) -> str:
    """A Kubernetes quantity: whole, or in thousandths."""
    return str(int(quantity)) if quantity == int(quantity) else f"{int(quantity * 1000)}m"


def head_first(cluster: Manifest) -> Iterator[Member]:
    """The groups of a RayCluster's spec."""
    yield Member("headgroup", 1, cluster["headGroupSpec"]["template"])
    for group in cluster["workerGroupSpecs"]:
        # KubeRay counts these where there is no autoscaler, and YuniKorn's plug-in the other: they are the same here.
        count = group["minReplicas"] * group.get("numOfHosts", 1)
        yield Member(group["groupName"], count, group["template"])
