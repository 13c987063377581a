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
    `share`: how much of it. `guest`: a second actor that computes here in turn with the first, each of them asking Ray for
    half of the cores; empty: there is none. `guest_gpus`: what of the GPUs it asks for.
    """

    name: str
    cpus: float
    gpus: float = 0.0
    role: str | None = None
    share: float = ROLE_SHARE
    guest: str = ""
    guest_gpus: float = 0.0

    def resources(self) -> dict[str, float]:
        """As Ray names them."""
        mark = {self.role: self.share} if self.role else {}
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {}) | mark


class Reservation:
    """A placement group with a bundle for each of some actors. It is asked for at once, and may wait for nodes."""

    def __init__(self, bundles: list[Bundle], strategy: str = "PACK"):
        self.bundles = bundles
        self.group: PlacementGroup = placement_group(
            [bundle.resources() for bundle in bundles], strategy=strategy
        )

    def wait(self, seconds: float) -> bool:
        """Whether nodes hold it; waits for that at most this long."""
        return bool(self.group.wait(max(0.0, seconds)))

    def options(self, name: str | None = None) -> dict[str, object]:
        """Actor options that put the actor `name` into its bundle; None: into the first one."""
        index = next(i for i, one in enumerate(self.bundles) if name in (None, one.name, one.guest))
        bundle = self.bundles[index]
        is_guest = bool(name) and name == bundle.guest
        return {
            "num_cpus": bundle.cpus / 2 if bundle.guest else bundle.cpus,
            "num_gpus": bundle.guest_gpus if is_guest else bundle.gpus - bundle.guest_gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False
            ),
        }

    def beginning(self, words: str) -> tuple[int, ...]:
        """Indices of the bundles whose names begin so, in order."""
        return tuple(index for index, bundle in enumerate(self.bundles) if bundle.name.startswith(words))

    def release(self) -> None:
        """Gives the resources back, or ends the wait for them; an actor that is there ends."""
        remove_placement_group(self.group)


def wait_for_all(reservations: list[Reservation], timeout: float) -> None:
    """Returns when all are there; else releases them.

    Raises:
        PlacementError: the cluster cannot hold them within `timeout` seconds; the sentence compares what is
            asked for with what the cluster has.
    """
    deadline = time.monotonic() + timeout
    if all(reservation.wait(deadline - time.monotonic()) for reservation in reservations):
        return
    for reservation in reservations:
        reservation.release()
    total, free = ray.cluster_resources(), ray.available_resources()
    bundles = [bundle.resources() for reservation in reservations for bundle in reservation.bundles]
    parts = []
    for resource in ("CPU", "GPU"):
        asked = [bundle.get(resource, 0.0) for bundle in bundles]
        if any(asked):
            parts.append(
                f"{sum(asked):g} {resource} in all and {max(asked):g} on one node "
                f"(cluster: {total.get(resource, 0.0):g}, free: {free.get(resource, 0.0):g})"
            )
    raise PlacementError(
        f"placement: the Ray cluster could not hold the run's {len(bundles)} actors together within "
        f"{timeout:.0f} s: they need {' and '.join(parts)}; "
        "lower sampler.replicas or learner.replicas, add nodes, or raise placement.timeout"
    )
