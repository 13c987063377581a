"""How much is in Ray's object store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import ray

LOOK_SECONDS: Final = 2.0
"""How often Ray is asked at most: steps may be shorter."""


def stored_now() -> float:
    """Bytes in the object stores of all nodes, whoever has put them there; NaN: Ray does not say."""
    size = ray.cluster_resources().get("object_store_memory", math.nan)
    return float(size - ray.available_resources().get("object_store_memory", 0.0))


class StoreUse:
    """What was in the store at the last look."""

    def __init__(
        self, look: Callable[[], float] = stored_now, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked, self._found = -math.inf, math.nan

    def look(self) -> float:
        """Bytes in it, as they were less than `LOOK_SECONDS` ago."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked, self._found = now, self._look()
        return self._found
