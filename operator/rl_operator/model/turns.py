"""Places that namespaces share: each gets one in its turn, and none holds so many that nothing is left. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

_TIMES: Final = 3
"""A namespace holds at most so many times the places that are free: one alone leaves a quarter of them, two a seventh."""


class Turns:
    """Who waits for a place, in which order, and who holds how many."""

    def __init__(self, places: float = math.inf) -> None:
        self.places = places
        self._held: Counter[str] = Counter()
        self._order: dict[str, None] = {}

    def wait(self, namespace: str) -> None:
        """The namespace wants a place; one that waits already keeps its turn."""
        self._order.setdefault(namespace)

    def leave(self, namespace: str) -> None:
        """It wants no more."""
        self._order.pop(namespace, None)

    def take(self) -> str | None:
        """Give a place to the first that may have one: it waits behind all others then. None: nobody may."""
        free = self.places - self._held.total()
        for namespace in self._order:
            if self._held[namespace] < _TIMES * free:
                self._held[namespace] += 1
                self.leave(namespace)
                self.wait(namespace)
                return namespace
        return None

    def give_back(self, namespace: str) -> None:
        """A place is free again."""
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
