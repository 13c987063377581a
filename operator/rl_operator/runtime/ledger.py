"""What each run holds, and which of them wait for others of their namespace.

One event loop decides for all runs, and what it decides stands here before anything else is decided: no two runs get what
only one of them may have. After a restart it is written anew from what the API server holds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from rl_operator.model.names import Key
from rl_operator.model.needs import Needs, Others

Place = tuple[str, str | None]
"""Namespace, and name of a profile."""

NOTHING: Final = Needs()


class Ledger:
    """Of each namespace and profile: who holds what, and who waits since when."""

    def __init__(self) -> None:
        self._held: dict[Place, dict[Key, Needs]] = defaultdict(dict)
        self._waiting: dict[Place, dict[Key, str]] = defaultdict(dict)
        self._places: dict[Key, Place] = {}

    def others(self, key: Key, profile: str | None, made: str) -> Others:
        """What other runs hold, and the oldest that waits and was made before this one, which was at `made`."""
        place = (key[0], profile)
        held = sum((needs for other, needs in self._held[place].items() if other != key), NOTHING)
        waiting = self._waiting[place]
        first = min(waiting, key=lambda other: (waiting[other], other), default=key)
        before = first != key and (waiting[first], first) < (made, key)
        return Others(held, first[1] if before else "")

    def note(self, key: Key, profile: str | None, needs: Needs, waits: str | None) -> list[Key]:
        """Take down what a run holds, and since when it waits (None: it does not); returns whom that may let begin."""
        place = (key[0], profile)
        before = self._places.get(key, place)
        held, waited = self._held[before].pop(key, NOTHING), self._waiting[before].pop(key, None)
        self._places[key] = place
        if needs != NOTHING:
            self._held[place][key] = needs
        if waits is not None:
            self._waiting[place][key] = waits
        less = held != NOTHING and held != needs
        if before != place or less or (waited is not None and waits is None):
            return self._next(before)
        return []

    def forget(self, key: Key) -> list[Key]:
        """A run is gone; returns whom that may let begin."""
        place = self._places.pop(key, None)
        if place is None:
            return []
        held, waited = self._held[place].pop(key, NOTHING), self._waiting[place].pop(key, None)
        return self._next(place) if held != NOTHING or waited is not None else []

    def _next(self, place: Place) -> list[Key]:
        """Whose turn it is."""
        waiting = self._waiting[place]
        return [min(waiting, key=lambda key: (waiting[key], key))] if waiting else []
