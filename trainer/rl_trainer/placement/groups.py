"""Placement groups of a run: what its actors need is reserved together, all or nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_api.errors import PlacementError

# Of the 1 that every node of a role offers: a mark, not an amount. CPU and GPU say how many actors a node holds.
ROLE_SHARE = 0.001
# A sampler takes the place that a node marked `sampler: 1` offers: one node more is one sampler more.
WHOLE_PLACE = 1.0


@dataclass(frozen=True)
class Bundle:
    """Resources of one actor: `name` as in messages (`sampler 0`), CPU cores and whole or part GPUs.

    `role`: a custom resource that marks the nodes of one role, where the cluster has such nodes; None: any node.
    `share`: how much of it.
    """

    name: str
    cpus: float
    gpus: float = 0.0
    role: str | None = None
    share: float = ROLE_SHARE

    def resources(self) -> dict[str, float]:
        """As Ray names them."""
        mark = {self.role: self.share} if self.role else {}
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {}) | mark


class Reservation:
    """A placement group that is ready. Bundle `i` holds the i-th actor given to `reserve`."""

    def __init__(self, group: PlacementGroup, bundles: list[Bundle]):
        self._group = group
        self.bundles = bundles

    def options(self, name: str) -> dict[str, object]:
        """Actor options that put the actor `name` into its bundle."""
        index = next(i for i, bundle in enumerate(self.bundles) if bundle.name == name)
        return actor_options(self.bundles[index], self._group, index)

    def release(self) -> None:
        """Gives the resources back."""
        remove_placement_group(self._group)


def actor_options(bundle: Bundle, group: PlacementGroup, index: int = 0) -> dict[str, object]:
    """Actor options that put one actor into bundle `index` of `group`."""
    return {
        "num_cpus": bundle.cpus,
        "num_gpus": bundle.gpus,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False
        ),
    }


def reserve(bundles: list[Bundle], strategy: str, timeout: float) -> Reservation:
    """Reserves all bundles with Ray's `strategy` (PACK or SPREAD) or none.

    Raises:
        PlacementError: the cluster cannot hold them within `timeout` seconds; the sentence compares what is
            asked for with what the cluster has.
    """
    started = time.monotonic()
    group = placement_group([bundle.resources() for bundle in bundles], strategy=strategy)
    if group.wait(timeout):
        return Reservation(group, bundles)
    remove_placement_group(group)
    raise no_room(bundles, time.monotonic() - started)


def no_room(bundles: list[Bundle], seconds: float) -> PlacementError:
    """The error of a cluster that could not hold `bundles` together within `seconds`."""
    total = ray.cluster_resources()
    free = ray.available_resources()
    parts = []
    for resource in ("CPU", "GPU"):
        asked = sum(bundle.resources().get(resource, 0.0) for bundle in bundles)
        if asked:
            largest = max(bundle.resources().get(resource, 0.0) for bundle in bundles)
            parts.append(
                f"{asked:g} {resource} in all and {largest:g} on one node "
                f"(cluster: {total.get(resource, 0.0):g}, free: {free.get(resource, 0.0):g})"
            )
    return PlacementError(
        f"placement: the Ray cluster could not hold the run's {len(bundles)} actors together within "
        f"{seconds:.0f} s: they need {' and '.join(parts)}; "
        "lower sampler.replicas or learner.replicas, add nodes, or raise placement.timeout"
    )
