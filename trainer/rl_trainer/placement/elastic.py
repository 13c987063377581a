"""Which samplers start, which are given up and which are replaced, as nodes come and go. Pure.

A sampler has a *place*: a placement group of its own, which is on a node, or waits for one. There is always one place
more than samplers, and it waits; as soon as a node has room for it, a sampler starts there and the next place waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rl_api.errors import PlacementError
from rl_trainer.error_text import RESUME_HINT

# How long Ray may take to notice that a dead sampler's node is gone as well.
NODE_DEATH_SECONDS = 5.0
LONGEST_PATIENCE = 60.0


@dataclass(frozen=True)
class Seat:
    """The place of one sampler, and what is known of the sampler.

    `node`: node that holds the place now; None: none does. `sampler`: node on which its sampler was started; None: there
    is none. `died`: when its process was seen to be gone. `failures`: starts in a row that came to nothing. `left`: it went
    because its pod is told to go.
    """

    rank: int
    node: str | None = None
    sampler: str | None = None
    died: float | None = None
    failures: int = 0
    left: bool = False


@dataclass(frozen=True)
class Changes:
    """What to do now, by rank: samplers to give up with their nodes, dead ones to replace where they were, samplers to
    start, waiting places to give back; and whether to ask for one more place."""

    lost: tuple[int, ...] = ()
    crashed: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    ask: bool = False


def changes(seats: Sequence[Seat], now: float, most: int | None = None) -> Changes:
    """What has to change.

    Args:
        seats: all places.
        now: the time, in the unit of `Seat.died`.
        most: samplers at most; None: as many as there are places.
    """
    seated = [seat for seat in seats if seat.node is not None]
    waiting = sorted(seat.rank for seat in seats if seat.node is None)
    full = most is not None and len(seated) >= most
    kept = 0 if full else 1
    return Changes(
        lost=tuple(s.rank for s in seats if s.sampler is not None and s.node != s.sampler),
        crashed=tuple(
            s.rank
            for s in seated
            if s.node == s.sampler and s.died is not None and now - s.died >= patience(s.failures, s.left)
        ),
        start=tuple(s.rank for s in seated if s.node != s.sampler),
        give_back=tuple(waiting[kept:]),
        ask=not waiting and not full,
    )


def patience(failures: int, left: bool = False) -> float:
    """Seconds from a sampler's death to the next try at its place; longer where the last ones came to nothing, and where it
    left: its node lives until the pod's grace is over."""
    return LONGEST_PATIENCE if left else min(NODE_DEATH_SECONDS * 2.0 ** min(failures, 10), LONGEST_PATIENCE)


def free_rank(ranks: Sequence[int]) -> int:
    """The smallest rank that nobody has: a sampler that comes after another has gone takes its name."""
    return next(rank for rank in itertools.count() if rank not in ranks)


def check_enough(there: int, least: int, since: float | None, now: float, timeout: float) -> float | None:
    """Since when there are fewer samplers than there must be; None: there are enough.

    Raises:
        PlacementError: for too long.
    """
    if there >= least:
        return None
    since = now if since is None else since
    if now - since > timeout:
        raise PlacementError(
            f"samplers: {there} left, at least {least} must be there (sampler.minReplicas), and no node for another one "
            f"came within {timeout:.0f} s (placement.timeout); look at why the nodes were lost, add nodes or raise "
            f"placement.timeout, then {RESUME_HINT}"
        )
    return since
