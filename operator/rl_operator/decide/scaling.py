"""How many samplers an attempt has: its Ray cluster begins with the fewest and follows the run's spec from then on. Pure.

KubeRay begins a job only when every pod that it was asked for is ready, and disregards changes of a RayJob's cluster: what
changes the number of samplers is a patch of the RayCluster that the RayJob has made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rl_operator.model.decision import Scale
from rl_operator.model.names import SAMPLER
from rl_operator.model.seen import Pod, SamplerGroup


def scale(group: SamplerGroup, wanted: int, pods: Iterable[Pod]) -> Scale | None:
    """What to ask KubeRay for so that an attempt with these pods has as many samplers as wanted; None: it knows already."""
    if wanted < group.replicas:
        there = [pod for pod in pods if pod.role == SAMPLER and pod.deleting is None]
        return Scale(group, wanted, surplus(there, len(there) - wanted))
    return Scale(group, wanted) if wanted > group.replicas else None


def surplus(pods: Iterable[Pod], count: int) -> tuple[str, ...]:
    """The pods whose loss costs least: those that do no work yet first, then the youngest. KubeRay would take any."""

    def cost(pod: Pod) -> tuple[bool, float, str]:
        return pod.ready, -pod.created.timestamp() if pod.created is not None else math.inf, pod.name

    return tuple(pod.name for pod in sorted(pods, key=cost)[: max(0, count)])
