"""How the pods of a role lie to each other, by the labels of the nodes of its pools. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_api.placement import TopologySpec
from rl_api.problems import Problem
from rl_api.profile import PoolSpec


@dataclass(frozen=True)
class Topology:
    """What the pods of a role have to do with a level of their nodes' topology."""

    how: Literal["required", "preferred", "spread"]
    level: str
    """Name of the level, as runs have it."""
    label: str
    """Label of nodes that tells its domains apart."""


def topology_of(spec: TopologySpec | None, pools: Sequence[PoolSpec]) -> Topology | None:
    """A role's topology in these pools, which have passed `wrong_topology`; None: its pods may lie anyhow."""
    if spec is None:
        return None
    how, level = _chosen(spec)
    label = _labels(pools[0])[level]
    return Topology(how, level, label)


def wrong_topology(part: str, spec: TopologySpec | None, pools: Sequence[PoolSpec]) -> Iterator[Problem]:
    """What keeps the role `part` from its topology: each of its pools must have the level, by the same label."""
    if spec is None:
        return
    how, level = _chosen(spec)
    path, first = ("spec", part, "topology", how), _labels(pools[0]).get(level)
    for pool in pools:
        label = _labels(pool).get(level)
        if label is None:
            levels = ", ".join(_labels(pool)) or "none"
            yield Problem(
                path, f"found {level!r}, allowed: a level of the topology of pool {pool.name}: {levels}"
            )
        elif first is not None and label != first:
            yield Problem(
                path,
                f"found {level!r}, which is label {first} in pool {pools[0].name} and {label} in pool {pool.name}, allowed: "
                "a level that is the same label in all pools of the role",
            )


def _chosen(spec: TopologySpec) -> tuple[Literal["required", "preferred", "spread"], str]:
    """Which of the fields is set: one is (`rl_api.placement_rules`)."""
    if spec.required is not None:
        return "required", spec.required
    if spec.preferred is not None:
        return "preferred", spec.preferred
    return "spread", spec.spread or ""


def _labels(pool: PoolSpec) -> dict[str, str]:
    """Labels of a pool's levels by name."""
    return {level.name: level.label for level in pool.topology}
