"""Places of samplers in a Ray cluster: all from the start, or as nodes come and go."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import ray
from ray.util.placement_group import placement_group_table

from rl_api import RunSpec
from rl_trainer.placement.bundles import bundles, check_workers, pod_of
from rl_trainer.placement.groups import Bundle, Reservation, wait_for_all
from rl_trainer.placement.held_time import Nodes

# For a place that Ray says it has room for.
_CREATE_SECONDS = 2.0


@dataclass(frozen=True)
class Elasticity:
    """How the number of samplers may change.

    `bundles`: what one sampler needs, its own pod first. `least`, `most`: samplers, None: as many as there are places.
    `timeout`: seconds for which fewer may be there.
    """

    bundles: tuple[Bundle, ...]
    least: int
    most: int | None
    timeout: float


@dataclass(frozen=True)
class Placement:
    """Where the actors of a run go. `places`: of the samplers, by rank, where their number may change, kept up to date by
    whoever changes it; else they are in the reservation."""

    reservation: Reservation
    places: dict[int, Reservation]
    elasticity: Elasticity | None

    @property
    def samplers(self) -> int:
        """Samplers that begin."""
        if self.elasticity is not None:
            return len(self.places)
        names = (name for bundle in self.reservation.bundles for name in (bundle.name, bundle.guest))
        return sum(name.startswith("sampler ") for name in names)

    @property
    def learner_gpus(self) -> bool:
        """Whether learners have GPUs."""
        return any(
            bundle.gpus > 0 for bundle in self.reservation.bundles if bundle.name.startswith("learner ")
        )

    def release(self) -> None:
        """Gives everything back."""
        for place in self.places.values():
            place.release()
        self.reservation.release()

    def sampler(self, rank: int) -> dict[str, object]:
        """Actor options that put a sampler where it belongs."""
        return self.places[rank].options() if self.elasticity else self.reservation.options(f"sampler {rank}")

    def other_pods(self, rank: int) -> tuple[int, ...]:
        """Bundles of the sampler's other pods, by their indices in the placement group of its own."""
        if self.elasticity is not None:
            return tuple(range(1, len(self.places[rank].bundles)))
        return self.reservation.beginning(pod_of(rank))


def place_run(spec: RunSpec, warn: Callable[[str], None]) -> Placement:
    """Reserves what the run begins with, all or nothing: everything, or where nodes are marked for samplers, the buffer,
    the learners and `sampler.minReplicas` samplers, and what else there is for samplers already. Where some samplers share
    learners' devices their number stays. `warn`: see `bundles`.

    Raises:
        PlacementError: the cluster cannot hold it within `placement.timeout`, or see `bundles` and `check_workers`.
    """
    offered = ray.cluster_resources()
    gpus, strategy, timeout = offered.get("GPU", 0.0), spec.placement.strategy, spec.placement.timeout.seconds
    elastic = ("sampler" in offered or "head" in offered) and not spec.shared_samplers
    least = spec.sampler.min_replicas
    check_workers(spec, gpus, offered)
    wanted = bundles(spec, gpus, offered, least if elastic else None, _gpus_of_roles(), warn)
    if not elastic:
        everything = Reservation(wanted, strategy)
        wait_for_all([everything], timeout)
        return Placement(everything, {}, None)
    each = spec.sampler.pods_per_replica
    places = {
        rank: Reservation(wanted[len(wanted) - (least - rank) * each :][:each]) for rank in range(least)
    }
    others = Reservation(wanted[: -least * each], strategy)
    wait_for_all([others, *places.values()], timeout)
    sampler = (replace(wanted[-each], name="sampler"), *wanted[len(wanted) - each + 1 :])
    # An operator gives an attempt exactly the nodes that it is to use; elsewhere the run says how many.
    most = None if "RLTRAIN_ATTEMPT" in os.environ else spec.sampler.replicas
    at_once = int(offered.get("sampler", 0.0)) // each
    for rank in range(least, at_once if most is None else min(most, at_once)):
        more = Reservation(list(sampler))
        if not more.wait(_CREATE_SECONDS):
            more.release()
            break
        places[rank] = more
    return Placement(others, places, Elasticity(sampler, least, most, timeout))


def _gpus_of_roles() -> dict[str, float]:
    """GPUs of the nodes that are marked for learners and for samplers, where there are such."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = {role: [node for node in nodes if role in node] for role in ("learner", "sampler")}
    return {role: sum(node.get("GPU", 0.0) for node in its) for role, its in found.items() if its}


def nodes_now() -> Nodes:
    """All that the Ray cluster has now, whoever uses it."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Nodes(sum(node.get("GPU", 0.0) for node in alive), len(alive))


def nodes_of(places: Mapping[int, Reservation]) -> dict[int, str | None]:
    """The live node that holds each place now, of several pods their nodes in one text; None: none does, or not all."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    table = placement_group_table()
    found: dict[int, str | None] = {}
    for rank, place in places.items():
        entry = table.get(place.group.id.hex(), {})
        held = entry.get("bundles_to_node_id", {}) if entry.get("state") == "CREATED" else {}
        nodes = [held.get(index) for index in range(len(place.bundles))]
        found[rank] = " ".join(map(str, nodes)) if alive.issuperset(nodes) else None
    return found
