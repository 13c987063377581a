"""What runs take of a cluster, in numbers that can be added up."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final


@dataclass(frozen=True)
class Needs:
    """Runs, their pods, and what these take of nodes."""

    runs: int = 0
    samplers: int = 0
    learners: int = 0
    accelerators: int = 0
    storage: int = 0
    """Bytes of nodes' disks."""

    def __add__(self, other: Needs) -> Needs:
        return Needs(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def times(self, count: int) -> Needs:
        """So many of them."""
        return Needs(*(count * one for one in astuple(self)))


@dataclass(frozen=True)
class Asked:
    """What KubeRay was asked for with the RayJob or RayCluster of an attempt."""

    fixed: Needs = Needs(runs=1)
    """All but the samplers."""
    sampler: Needs = Needs(samplers=1)
    """One sampler."""
    most: int = 0
    """Samplers at most."""

    def with_samplers(self, count: int) -> Needs:
        """All of it, with so many samplers."""
        return self.fixed + self.sampler.times(count)


NOTHING_ASKED: Final = Asked()


@dataclass(frozen=True)
class Others:
    """The other runs of a namespace under the same profile."""

    held: Needs = Needs()
    """What they have."""
    first: str = ""
    """Name of the one that waits for its turn before this run does; empty: none."""


NOBODY: Final = Others()
