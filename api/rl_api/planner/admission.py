"""The buffer as the planner sees it: which groups may start, and when learners have a part. Pure.

`Admission` is the rule alone, so that the operator, which has no trainer, can simulate as well. The trainer drives its own
buffer through the same protocol (`rl_trainer.buffer.simulated`), and a test holds the two against each other.
"""

from __future__ import annotations

import bisect
from typing import Protocol


class Queue(Protocol):
    """What a simulation asks of a buffer. Groups are numbered 0, 1, 2, ...; times are seconds."""

    def register(self, sampler: int) -> None:
        """It is there, or back."""

    def release(self, sampler: int) -> None:
        """It is gone: others get its unfinished groups."""

    def leave(self, sampler: int, groups: list[int]) -> None:
        """It has left its devices until it registers again: others go on with these groups."""

    def acquire(self, sampler: int, most: int) -> list[int]:
        """Groups that it may start, at most `most`, possibly none."""

    def put(self, sampler: int, group: int, now: float) -> None:
        """A group is scored."""

    def take(self, groups: int, now: float) -> list[int] | None:
        """The next part of the step's batch, of `groups` groups or what is left of the step; None: wait."""

    def commit(self) -> None:
        """The step is over."""

    def publish(self, version: int) -> None:
        """Samplers have these weights."""


class Admission:
    """A group may start while those not trained on are fewer than (version + 1 + maxStaleness - steps begun) x groups.

    Under staleness 0 a group's sampler is its number modulo samplers, and parts come in the order of groups' numbers,
    whichever is ready first, as in the buffer. Other systems' take the parts that are ready first, and give each sampler no
    more than its share.
    """

    def __init__(
        self, groups: int, samplers: int, staleness: float = 0.0, in_order: bool | None = None
    ) -> None:
        """`groups`: of a step. `staleness`: in steps, fractions too. `in_order`: None: as the buffer; False: as others."""
        self.groups, self.samplers, self.staleness = groups, samplers, staleness
        self.homes = staleness == 0
        self.in_order = self.homes if in_order is None else in_order
        self.shares = in_order is False
        self.version = self.steps = self.cursor = 0
        self.taken = 0
        self.running: dict[int, int] = {}
        self.pending: list[int] = []
        self.ready: list[int] = []
        self.there: set[int] = set()

    def register(self, sampler: int) -> None:
        """See `Queue`."""
        self.there.add(sampler)

    def release(self, sampler: int) -> None:
        """See `Queue`."""
        self.leave(sampler, [group for group, holder in self.running.items() if holder == sampler])

    def leave(self, sampler: int, groups: list[int]) -> None:
        """See `Queue`."""
        for group in groups:
            del self.running[group]
            bisect.insort(self.pending, group)
        self.there.discard(sampler)

    def acquire(self, sampler: int, most: int) -> list[int]:
        """See `Queue`."""
        if self.shares and not self.homes:
            held = sum(holder == sampler for holder in self.running.values())
            most = min(most, -(-int((1 + self.staleness) * self.groups) // len(self.there)) - held)
        self._admit(self.groups if self.homes else max(0, most - len(self.pending)))
        own = [one for one in self.pending if self._home(one) == sampler] if self.homes else self.pending
        mine = own[: max(0, most)]
        for group in mine:
            del self.pending[bisect.bisect_left(self.pending, group)]
            self.running[group] = sampler
        return mine

    def _home(self, group: int) -> int:
        home = group % self.samplers
        if home not in self.there:
            living = sorted(self.there)
            home = living[group % len(living)]
        return home

    def _admit(self, most: int) -> None:
        begun = self.steps + (self.taken == self.groups)
        outstanding = self.taken % self.groups + len(self.ready) + len(self.running) + len(self.pending)
        budget = int((self.version + 1 + self.staleness - begun) * self.groups) - outstanding
        count = max(0, min(budget, most))
        self.pending.extend(range(self.cursor, self.cursor + count))
        self.cursor += count

    def put(self, sampler: int, group: int, now: float) -> None:
        """See `Queue`."""
        del self.running[group]
        self.ready.append(group)

    def take(self, groups: int, now: float) -> list[int] | None:
        """See `Queue`."""
        groups = min(groups, self.groups - self.taken)
        if groups == 0 or len(self.ready) < groups:
            return None
        if self.in_order:
            self.ready.sort()
            unfinished = min((*self.running, *self.pending), default=self.cursor)
            if self.ready[groups - 1] > unfinished:
                return None
        part, self.ready = self.ready[:groups], self.ready[groups:]
        self.taken += groups
        return part

    def commit(self) -> None:
        """See `Queue`."""
        self.taken = 0
        self.steps += 1

    def publish(self, version: int) -> None:
        """See `Queue`."""
        self.version = version
