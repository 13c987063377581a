"""What runs and services take of a cluster, in numbers that can be added up."""

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
    task_workers: int = 0

    def __add__(self, other: Needs) -> Needs:
        return Needs(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def times(self, count: int) -> Needs:
        """So many of them."""
        return Needs(*(count * one for one in astuple(self)))

    def at_least(self, other: Needs) -> Needs:
        """Of each the larger one."""
        return Needs(*(max(one, two) for one, two in zip(astuple(self), astuple(other), strict=True)))

    def where_more(self, wanted: Needs, has: Needs) -> Needs:
        """Only that of which more is wanted than there is; what stays as it is takes nothing of anybody."""
        parts = zip(astuple(self), astuple(wanted), astuple(has), strict=True)
        return Needs(*(one if more > less else 0 for one, more, less in parts))


@dataclass(frozen=True)
class Asked:
    """What KubeRay was asked for with the RayJob or RayCluster of an attempt."""

    fixed: Needs = Needs(runs=1)
    """All but the samplers."""
    sampler: Needs = Needs(samplers=1)
    """One pod of samplers."""
    most: int = 0
    """Pods of samplers at most."""

    def with_samplers(self, count: int) -> Needs:
        """All of it, with so many pods of samplers."""
        return self.fixed + self.sampler.times(count)


NOTHING: Final = Needs()
NOTHING_ASKED: Final = Asked()


@dataclass(frozen=True)
class Others:
    """The other runs and services of a namespace under the same profile."""

    held: Needs = NOTHING
    """What they have."""
    first: str = ""
    """The one that waits for its turn before this one does, such as `run sums`; empty: none."""


NOBODY: Final = Others()
