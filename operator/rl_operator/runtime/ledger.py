"""What each run and each service holds, and which of them wait for others of their namespace.

One event loop decides for all of them, and what it decides stands here before anything else is decided: no two get what
only one of them may have. After a restart it is written anew from what the API server holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_operator.model.names import KIND, Key
from rl_operator.model.needs import NOTHING, Needs, Others

Place = tuple[str, str | None]
"""Namespace, and name of a profile."""


class Holder(NamedTuple):
    """A run or a service: one of each may have the same name."""

    namespace: str
    name: str
    kind: str = KIND

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{'run' if self.kind == KIND else 'service'} {self.name}"


class Ledger:
    """Of each namespace and profile: who holds what, and who waits since when."""

    def __init__(self) -> None:
        self._held: dict[Place, dict[Holder, Needs]] = defaultdict(dict)
        self._waiting: dict[Place, dict[Holder, str]] = defaultdict(dict)
        self._places: dict[Holder, Place] = {}

    def others(self, holder: Holder, profile: str | None, made: str) -> Others:
        """What others hold, and the oldest that waits and was made before this one, which was at `made`."""
        place = (holder.namespace, profile)
        held = sum((needs for other, needs in self._held[place].items() if other != holder), NOTHING)
        waiting = self._waiting[place]
        first = min(waiting, key=lambda other: (waiting[other], other), default=holder)
        before = first != holder and (waiting[first], first) < (made, holder)
        return Others(held, str(first) if before else "")

    def note(self, holder: Holder, profile: str | None, needs: Needs, waits: str | None) -> list[Holder]:
        """Take down what one holds, and since when it waits (None: it does not); returns whom that may let begin."""
        place = (holder.namespace, profile)
        before = self._places.get(holder, place)
        held, waited = self._held[before].pop(holder, NOTHING), self._waiting[before].pop(holder, None)
        self._places[holder] = place
        if needs != NOTHING:
            self._held[place][holder] = needs
        if waits is not None:
            self._waiting[place][holder] = waits
        less = held != NOTHING and held != needs
        if before != place or less or (waited is not None and waits is None):
            return self._next(before)
        return []

    def forget(self, holder: Holder) -> list[Holder]:
        """A run or service is gone; returns whom that may let begin."""
        place = self._places.pop(holder, None)
        if place is None:
            return []
        held, waited = self._held[place].pop(holder, NOTHING), self._waiting[place].pop(holder, None)
        return self._next(place) if held != NOTHING or waited is not None else []

    def _next(self, place: Place) -> list[Holder]:
        """Whose turn it is."""
        waiting = self._waiting[place]
        return [min(waiting, key=lambda holder: (waiting[holder], holder))] if waiting else []


def made_at(document: Mapping[str, Any]) -> str:
    """When a run or service was made, to be compared with others."""
    return str(document["metadata"].get("creationTimestamp") or "")
