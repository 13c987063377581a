"""Places of samplers in a Ray cluster: all from the start, or as nodes come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rl_api import RunSpec
from rl_api.errors import PlacementError
from rl_trainer.placement.bundles import bundles
from rl_trainer.placement.groups import Bundle, Reservation, actor_options, no_room, reserve

# For a place that Ray says it has room for.
_CREATE_SECONDS = 2.0


class Place:
    """A place of one sampler in a placement group of its own, which may wait for a node."""

    def __init__(self, bundle: Bundle):
        """Asks for it; returns at once."""
        self._bundle = bundle
        self.group: PlacementGroup = placement_group([bundle.resources()])

    @property
    def options(self) -> dict[str, object]:
        """Actor options that put a sampler there."""
        return actor_options(self._bundle, self.group)

    def wait(self, seconds: float) -> bool:
        """Whether a node holds it; waits for that at most this long."""
        return bool(self.group.wait(max(0.0, seconds)))

    def give_back(self) -> None:
        """Ends the wait for it, or the sampler that is there."""
        remove_placement_group(self.group)


@dataclass(frozen=True)
class Elasticity:
    """How the number of samplers may change.

    `bundle`: what one sampler needs. `least`, `most`: samplers, None: as many as there are places. `timeout`: seconds
    for which fewer may be there.
    """

    bundle: Bundle
    least: int
    most: int | None
    timeout: float


@dataclass(frozen=True)
class Placement:
    """Where the actors of a run go. `places`: of the samplers, by rank, where their number may change, kept up to date by
    whoever changes it; else they are in the reservation."""

    reservation: Reservation
    places: dict[int, Place]
    elasticity: Elasticity | None

    @property
    def samplers(self) -> int:
        """Samplers that begin."""
        if self.elasticity is not None:
            return len(self.places)
        return sum(bundle.name.startswith("sampler ") for bundle in self.reservation.bundles)

    def release(self) -> None:
        """Gives everything back."""
        for place in self.places.values():
            place.give_back()
        self.reservation.release()


def place_run(spec: RunSpec, warn: Callable[[str], None]) -> Placement:
    """Reserves what the run begins with, all or nothing: everything, or where nodes are marked for samplers, the buffer,
    the learners and `sampler.minReplicas` samplers, and what else there is for samplers already. `warn`: see `bundles`.

    Raises:
        PlacementError: the cluster cannot hold it within `placement.timeout`, or see `bundles`.
    """
    offered = ray.cluster_resources()
    gpus, strategy, timeout = offered.get("GPU", 0.0), spec.placement.strategy, spec.placement.timeout.seconds
    if "sampler" not in offered and "head" not in offered:
        wanted = bundles(spec, gpus, offered, gpus_of=_gpus_of_roles(), warn=warn)
        return Placement(reserve(wanted, strategy, timeout), {}, None)
    least = spec.sampler.min_replicas
    wanted = bundles(spec, gpus, offered, least, _gpus_of_roles(), warn)
    sampler = replace(wanted[-1], name="sampler")
    # An operator gives an attempt exactly the nodes that it is to use; elsewhere the run says how many.
    most = None if "RLTRAIN_ATTEMPT" in os.environ else spec.sampler.replicas
    reservation, places = _reserve_elastic(wanted[:-least], wanted[-least:], strategy, timeout)
    at_once = (
        int(offered.get("sampler", 0.0)) if most is None else min(most, int(offered.get("sampler", 0.0)))
    )
    for rank in range(least, at_once):
        more = Place(sampler)
        if not more.wait(_CREATE_SECONDS):
            more.give_back()
            break
        places[rank] = more
    return Placement(reservation, places, Elasticity(sampler, least, most, timeout))


def _gpus_of_roles() -> dict[str, float]:
    """GPUs of the nodes that are marked for learners and for samplers, where there are such."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = {role: [node for node in nodes if role in node] for role in ("learner", "sampler")}
    return {role: sum(node.get("GPU", 0.0) for node in its) for role, its in found.items() if its}


def _reserve_elastic(
    others: list[Bundle], samplers: list[Bundle], strategy: str, timeout: float
) -> tuple[Reservation, dict[int, Place]]:
    """The reservation of all but the samplers, and a place for each of these; or nothing."""
    started = time.monotonic()
    places = {rank: Place(bundle) for rank, bundle in enumerate(samplers)}
    reservation = None
    try:
        reservation = reserve(others, strategy, timeout)
        if all(place.wait(started + timeout - time.monotonic()) for place in places.values()):
            return reservation, places
    except PlacementError:
        pass  # said below, of all actors
    if reservation is not None:
        reservation.release()
    for place in places.values():
        place.give_back()
    raise no_room([*others, *samplers], time.monotonic() - started)


def nodes_of(places: Mapping[int, Place]) -> dict[int, str | None]:
    """The live node that holds each place now; None: none does."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    table = placement_group_table()
    found: dict[int, str | None] = {}
    for rank, place in places.items():
        entry = table.get(place.group.id.hex(), {})
        node = entry.get("bundles_to_node_id", {}).get(0) if entry.get("state") == "CREATED" else None
        found[rank] = node if node in alive else None
    return found
