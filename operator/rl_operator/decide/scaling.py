"""How many samplers an attempt has, and how many pods for copies a service. Pure.

An attempt's Ray cluster begins with the fewest samplers and follows the run's spec from then on: KubeRay begins a job only
when every pod that it was asked for is ready. It disregards changes of a RayJob's or RayService's cluster: what changes a
number of pods is a patch of the RayCluster that was made of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rl_operator.model.decision import Scale
from rl_operator.model.seen import Pod, WorkerGroup


def scale(group: WorkerGroup, wanted: int, pods: Iterable[Pod]) -> Scale | None:
    """What to ask KubeRay for so that a group with these pods has as many as wanted; None: it knows already."""
    if wanted < group.replicas:
        there = [pod for pod in pods if pod.role == group.name and pod.deleting is None]
        return Scale(group, wanted, surplus(there, len(there) - wanted))
    return Scale(group, wanted) if wanted > group.replicas else None


def scale_copies(group: WorkerGroup, wanted: int, pods: Iterable[Pod]) -> Scale | None:
    """As `scale`, for a service: a pod goes when Ray Serve has taken its copy away, after the last answer of that one.

    It is not ready then, as no proxy is where no copy is.
    """
    there = [pod for pod in pods if pod.role == group.name and pod.deleting is None]
    if wanted < group.replicas and sum(pod.ready for pod in there) > wanted:
        return None
    found = scale(group, wanted, there)
    return replace(found, bound=True) if found is not None else None


def surplus(pods: Iterable[Pod], count: int) -> tuple[str, ...]:
    """The pods whose loss costs least: those that do no work yet first, then the youngest. KubeRay would take any."""

    def cost(pod: Pod) -> tuple[bool, float, str]:
        return pod.ready, -pod.created.timestamp() if pod.created is not None else math.inf, pod.name

    return tuple(pod.name for pod in sorted(pods, key=cost)[: max(0, count)])
