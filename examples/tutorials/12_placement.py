"""Placement groups: who sits with whom, with PACK and with SPREAD, on two nodes of four CPUs.

python examples/tutorials/12_placement.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from show import Row, table

ACTORS = ("buffer", "learner", "sampler 0", "sampler 1")
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@ray.remote(num_cpus=1)
class Here:
    """An actor that knows where it is."""

    def node(self) -> str:
        """The node's id."""
        found: str = ray.get_runtime_context().get_node_id()
        return found


@contextmanager
def two_nodes() -> Iterator[None]:
    """Two Ray nodes on this machine: each believes that it has four CPUs."""
    cluster = Cluster()
    try:
        for node in range(2):
            more: dict[str, Any] = {"include_dashboard": False} if node == 0 else {}
            cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20, **more)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _wait_until_free(patience: float = 30.0) -> None:
    """What the group before had is given back a moment after it was removed: SPREAD would find one node only."""
    end = time.monotonic() + patience
    while ray.available_resources().get("CPU", 0.0) < ray.cluster_resources()["CPU"]:
        if time.monotonic() > end:
            raise TimeoutError(f"the CPUs of the placement group before are not free after {patience:g} s")
        time.sleep(0.05)


def seats(strategy: str, patience: float) -> dict[str, str] | None:
    """The node of each actor; None: no nodes could give that."""
    _wait_until_free()
    group = placement_group([{"CPU": 1}] * len(ACTORS), strategy=strategy)  # all of it or nothing: a gang
    try:
        if not group.wait(timeout_seconds=patience):
            return None
        actors = [
            Here.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
            for bundle in range(len(ACTORS))
        ]
        return dict(zip(ACTORS, ray.get([actor.node.remote() for actor in actors], timeout=60), strict=True))
    finally:
        remove_placement_group(group)


def main(patience: float = 3.0) -> list[Row]:
    """Rows: the strategy, and who sits on each of the nodes."""
    nodes = [node["NodeID"] for node in ray.nodes()]
    rows = []
    for strategy in STRATEGIES:
        found = seats(strategy, patience)
        row = {"strategy": strategy}
        for number, node in enumerate(nodes):
            there = [name for name, where in (found or {}).items() if where == node]
            row[f"node {number}"] = (
                ", ".join(there) if found else "waits: two nodes cannot hold four bundles apart"
            )
        rows.append(row)
    table(rows, "One CPU for each of four actors")
    return rows


if __name__ == "__main__":
    with two_nodes():
        main()
