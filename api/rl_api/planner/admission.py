"""Buffer and leases as the planner sees them: which groups may start, when learners have a part, who has a device. Pure.

`Admission` and `Turns` are the rules alone, so that the operator, which has no trainer, can simulate as well. The trainer's
own buffer goes through the same protocol (`rl_trainer.buffer.simulated`), and a test holds the two against each other.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, Protocol

LEARNERS: Final = "learners"
"""All learner ranks together are one holder."""


class Leases(Protocol):
    """What a simulation asks of leases."""

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0) -> object:
        """`holder` wants all of `devices` together."""

    def has(self, holder: str) -> bool:
        """Whether it has what it claimed."""

    def give_back(self, holder: str) -> None:
        """It has nothing any more, and claims nothing."""


class Turns:
    """A claim is granted when nobody has a device of it: learners' before samplers', else the first that came."""

    def __init__(self) -> None:
        self.held: dict[str, frozenset[str]] = {}
        self.claims: list[tuple[int, str, frozenset[str]]] = []

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0) -> None:
        """See `Leases`."""
        self.claims.append((-priority, holder, frozenset(devices)))
        self.claims.sort(key=lambda one: one[0])
        self._grant()

    def has(self, holder: str) -> bool:
        """See `Leases`."""
        return holder in self.held

    def give_back(self, holder: str) -> None:
        """See `Leases`."""
        self.held.pop(holder, None)
        self.claims = [one for one in self.claims if one[1] != holder]
        self._grant()

    def _grant(self) -> None:
        taken = frozenset().union(*self.held.values())
        for claim in list(self.claims):
            _, holder, devices = claim
            if not devices & taken:
                self.held[holder] = devices
                self.claims.remove(claim)
            taken |= devices


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

    As in the buffer, under staleness 0 a group's sampler is its number modulo samplers, and parts come in the order of
    groups' numbers, whichever is ready first; else a part waits for groups that would be too old for the next one. Other
    systems' parts are the groups that are ready first, and each sampler has no more than its share.
    """

    def __init__(
        self, groups: int, samplers: int, staleness: float = 0.0, in_order: bool | None = None
    ) -> None:
        """`groups`: of a step. `staleness`: in steps, fractions too. `in_order`: None: as the buffer; False: as others."""
        self.groups, self.samplers, self.staleness = groups, samplers, staleness
        self.homes = staleness == 0
        self.in_order = self.homes if in_order is None else in_order
        self.shares = in_order is False
        self.versions: dict[int, int] = {}
        self.moved: set[int] = set()  # groups that were handed over, which those who did get no more
        self.movers: set[int] = set()
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
        lost = [group for group, holder in self.running.items() if holder == sampler]
        self._give_up(sampler, lost)
        for group in lost:  # nothing is left of it
            del self.versions[group]

    def leave(self, sampler: int, groups: list[int]) -> None:
        """See `Queue`."""
        self.moved |= set(groups)
        self.movers.add(sampler)
        self._give_up(sampler, groups)

    def _give_up(self, sampler: int, groups: list[int]) -> None:
        for group in groups:
            del self.running[group]
            bisect.insort(self.pending, group)
        self.there.discard(sampler)

    def acquire(self, sampler: int, most: int) -> list[int]:
        """See `Queue`."""
        if self.shares and not self.homes:
            held = sum(holder == sampler for holder in self.running.values())
            most = min(most, -(-int((1 + self.staleness) * self.groups) // len(self.there)) - held)
        self._admit(self.groups if self.homes else max(0, most - len(self._open_to(sampler))))
        own = [one for one in self._open_to(sampler) if not self.homes or self._home(one) == sampler]
        mine = own[: max(0, most)]
        for group in mine:
            del self.pending[bisect.bisect_left(self.pending, group)]
            self.running[group] = sampler
            self.versions.setdefault(group, self.version)
        return mine

    def _open_to(self, sampler: int) -> list[int]:
        if sampler not in self.movers or not self.there - self.movers:
            return self.pending
        return [group for group in self.pending if group not in self.moved]

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
        self.moved.discard(group)
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
        due = self._due(groups)
        if due is None:
            return None
        part = (due + [group for group in self.ready if group not in due])[:groups]
        self.ready = [group for group in self.ready if group not in part]
        self.taken += groups
        return part

    def _due(self, groups: int) -> list[int] | None:
        """Groups that would be too old for the part after this one; None: it waits for one of them."""
        if self.homes or self.shares:
            return []
        due: list[int] = []
        handed = [group for group in self.pending if group in self.versions]
        outstanding = sorted(self.versions[group] for group in (*self.ready, *self.running, *handed))
        for position, version in enumerate(outstanding, start=1):
            if position < len(outstanding) and outstanding[position] == version:
                continue
            later = (version + 1 + self.staleness - self.steps) * self.groups - self.taken - groups
            missing = position - int(later) - len(due)
            if missing > 0:
                urgent = [one for one in self.ready if self.versions[one] <= version and one not in due]
                if len(urgent) < missing:
                    return None
                due += urgent[:missing]
        return due

    def commit(self) -> None:
        """See `Queue`."""
        self.taken = 0
        self.steps += 1

    def publish(self, version: int) -> None:
        """See `Queue`."""
        self.version = version
