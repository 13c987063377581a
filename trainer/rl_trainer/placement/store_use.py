"""How much was put into Ray's object store, and is still there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import ray
from ray._private.state import available_resources_per_node

LOOK_SECONDS: Final = 2.0
"""How often Ray is asked at most: steps may be shorter."""

_MEMORY: Final = "object_store_memory"


def stored_now() -> float:
    """Bytes of primary copies in the object stores of all nodes, whoever has put them there; NaN: Ray does not say.

    What a node has read from another one is a further copy, which its store drops when it needs the room: Ray does not tell
    of those. A node that comes or goes between the two questions does not count.
    """
    free = available_resources_per_node()
    used = [
        node["Resources"][_MEMORY] - free[node["NodeID"]].get(_MEMORY, 0.0)
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] in free and _MEMORY in node["Resources"]
    ]
    return max(0.0, math.fsum(used)) if used else math.nan


class StoreUse:
    """What `stored_now` said at the last look."""

    def __init__(
        self, look: Callable[[], float] = stored_now, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked, self._found = -math.inf, math.nan

    def look(self) -> float:
        """Bytes, as they were less than `LOOK_SECONDS` ago."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked, self._found = now, self._look()
        return self._found
