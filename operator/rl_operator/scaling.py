"""How many samplers an attempt has: its Ray cluster begins with the fewest and follows the run's spec from then on. Pure.

KubeRay begins a job only when every pod that it was asked for is ready, and disregards changes of a RayJob's cluster: what
changes the number of samplers is a patch of the RayCluster that the RayJob has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_operator.render.names import SAMPLER, Manifest

if TYPE_CHECKING:
    from rl_operator.world import Pod


@dataclass(frozen=True)
class SamplerGroup:
    """The worker group of samplers in a RayCluster, as it is wanted there."""

    cluster: str
    uid: str
    owner: str
    """Uid of what controls the RayCluster: a RayJob or the run."""
    index: int
    """Place among the worker groups."""
    replicas: int
    most: int


def parse_group(document: Mapping[str, Any]) -> SamplerGroup | None:
    """The samplers of a RayCluster; None: it has none."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    owners = metadata.get("ownerReferences") or ()
    for index, group in enumerate(spec.get("workerGroupSpecs") or ()):
        if group.get("groupName") == SAMPLER:
            return SamplerGroup(
                cluster=str(metadata["name"]),
                uid=str(metadata.get("uid", "")),
                owner=next((str(one.get("uid")) for one in owners if one.get("controller")), ""),
                index=index,
                replicas=int(group.get("replicas") or 0),
                most=int(group.get("maxReplicas") or 0),
            )
    return None


@dataclass(frozen=True)
class Scale:
    """The wish for another number of samplers."""

    group: SamplerGroup
    replicas: int
    remove: tuple[str, ...] = ()
    """Pods to take away, where there are to be fewer."""

    @property
    def patch(self) -> list[Manifest]:
        """As a JSON patch, which fails where the cluster or the group is another one by now."""
        root = f"/spec/workerGroupSpecs/{self.group.index}"
        patch: list[Manifest] = [
            {"op": "test", "path": "/metadata/uid", "value": self.group.uid},
            {"op": "test", "path": f"{root}/groupName", "value": SAMPLER},
            {"op": "add", "path": f"{root}/replicas", "value": self.replicas},
            # What was named there before is gone, and names are not used again.
            {
                "op": "add",
                "path": f"{root}/scaleStrategy",
                "value": {"workersToDelete": list(self.remove)} if self.remove else {},
            },
        ]
        if self.replicas > self.group.most:
            patch.append({"op": "add", "path": f"{root}/maxReplicas", "value": self.replicas})
        return patch

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.replicas} instead of {self.group.replicas} samplers are wanted in {self.group.cluster}"


def scale(group: SamplerGroup, wanted: int, pods: Iterable[Pod]) -> Scale | None:
    """What to ask KubeRay for; None: it knows already.

    Args:
        group: the samplers of the attempt's cluster.
        wanted: how many there are to be.
        pods: the attempt's pods.
    """
    if group.replicas == wanted:
        return None
    there = [pod for pod in pods if pod.role == SAMPLER and pod.deleting is None]
    return Scale(group, wanted, surplus(there, len(there) - wanted) if wanted < group.replicas else ())


def surplus(pods: Iterable[Pod], count: int) -> tuple[str, ...]:
    """The pods whose loss costs least: those that do no work yet first, then the youngest. KubeRay would take any."""

    def cost(pod: Pod) -> tuple[bool, float, str]:
        return pod.ready, -(pod.created.timestamp() if pod.created is not None else 0.0), pod.name

    return tuple(pod.name for pod in sorted(pods, key=cost)[: max(0, count)])
