"""Rules of where pods go within a cluster. See `rl_api.rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec

PLACED: Final = ("sampler", "learner")
"""Roles that have a topology."""

ONE_TOPOLOGY: Final = "allowed: exactly one of required, preferred and spread"


def one_topology(spec: RunSpec) -> Iterator[Problem]:
    """`topology` of `sampler` and `learner` has exactly one of required, preferred and spread."""
    for role in PLACED:
        topology = getattr(spec, role).topology
        chosen = topology.model_dump(by_alias=True, exclude_none=True) if topology is not None else {}
        if topology is not None and len(chosen) != 1:
            found = " and ".join(chosen) or "an empty object"
            yield spec_problem(f"{role}.topology", f"found {found}, {ONE_TOPOLOGY}")
