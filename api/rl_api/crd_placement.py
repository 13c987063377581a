"""CEL rules of where pods go within a cluster, see `rl_api.placement_rules`."""

from __future__ import annotations

from typing import Final

from rl_api.crd_places import cel_rule
from rl_api.crd_schema import Rule
from rl_api.placement_rules import ONE_TOPOLOGY, PLACED

TOPOLOGY_RULES: Final[list[Rule]] = [
    cel_rule(
        f"!self.?{role}.?topology.hasValue() || [has(self.{role}.topology.required), "
        f"has(self.{role}.topology.preferred), has(self.{role}.topology.spread)].filter(set, set).size() == 1",
        f".{role}.topology",
        ONE_TOPOLOGY,
    )
    for role in PLACED
]
"""Rules of a run's spec."""

POOL_RULES: Final[list[Rule]] = [
    cel_rule(
        "!has(self.acceleratorsPerNode) || has(self.acceleratorResource) || has(self.deviceClass)",
        ".acceleratorResource",
        "missing, required with acceleratorsPerNode: a resource such as nvidia.com/gpu, or a deviceClass",
    ),
    cel_rule(
        "!has(self.acceleratorResource) || !has(self.deviceClass)",
        ".deviceClass",
        "found an object, allowed: null with acceleratorResource {self.acceleratorResource}, as pods ask for "
        "accelerators in one way",
    ),
    cel_rule(
        "!has(self.topology) || self.topology.all(one, self.topology.exists_one(other, other.label == one.label))",
        ".topology",
        "found a label twice, allowed: each at most once",
    ),
]
"""Rules of a pool of a profile."""
