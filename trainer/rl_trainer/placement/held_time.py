"""For how long an attempt held accelerators and pods, as its driver saw them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 2.0
"""How often the driver looks at most: steps may be shorter."""


class Nodes(NamedTuple):
    """What there is of a Ray cluster."""

    accelerators: float
    """Of all live nodes."""
    live: int
    """Live nodes: pods, on a cluster."""


class HeldTime:
    """Sums over time; what was there at one look counts until the next.

    Attributes:
        accelerators: accelerator seconds so far.
        pods: pod seconds so far.
    """

    def __init__(self, look: Callable[[], Nodes], clock: Callable[[], float] = time.monotonic):
        """Counts from now on."""
        self._look, self._clock = look, clock
        self.accelerators = self.pods = 0.0
        self._nodes, self._counted = look(), clock()
        self._looked = self._counted

    def look(self) -> None:
        """See what is there now, unless that was just done."""
        if self._clock() - self._looked >= LOOK_SECONDS:
            nodes = self._look()
            self.count()
            self._nodes, self._looked = nodes, self._counted

    def count(self) -> None:
        """Count up to now without asking anybody: Ray may be the one that died."""
        now = self._clock()
        self.accelerators += self._nodes.accelerators * (now - self._counted)
        self.pods += self._nodes.live * (now - self._counted)
        self._counted = now
