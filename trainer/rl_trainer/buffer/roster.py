"""Which samplers are there, which of them share devices with learners, and whose share a group is. Pure."""

from __future__ import annotations

import bisect


class Roster:
    """Samplers by rank (0, 1, ...)."""

    def __init__(self, samplers: int, shared: int) -> None:
        """`samplers`: that begin; the first `shared` of all take turns with learners."""
        self.registered: set[int] = set()
        self._released: set[int] = set()
        self._shares = list(range(samplers))  # all that ever had one, in order
        self._shared = shared

    def join(self, sampler: int) -> None:
        """It is there, or back."""
        self._released.discard(sampler)
        self.registered.add(sampler)
        if sampler not in self._shares:
            bisect.insort(self._shares, sampler)

    def leave(self, sampler: int) -> None:
        """It is gone."""
        self.registered.discard(sampler)
        self._released.add(sampler)

    def shares_device(self, sampler: int) -> bool:
        """Whether it takes turns with learners, while there are samplers that do not."""
        return sampler < self._shared and any(other >= self._shared for other in self.registered)

    def home(self, group_id: int, moves: bool) -> int:
        """The sampler that gets a group in strict mode: its share is fixed, a dead one's goes round the living.

        `moves`: to one with a device of its own, where there is such a one.
        """
        living = sorted(self.registered)
        home = self._shares[group_id % len(self._shares)]
        if home in self._released and living:
            home = living[group_id % len(living)]
        if moves and self.shares_device(home):
            own = [other for other in living if not self.shares_device(other)]
            home = own[group_id % len(own)]
        return home
