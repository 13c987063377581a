"""One sampler in virtual time: which sequences it decodes, and how far they are. Pure."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from rl_api.planner.profile import DecodeProfile


@dataclass
class Member:
    """A sequence: tokens it will get still, and those that are cached when it begins."""

    group: int
    left: int
    cached: float


@dataclass
class VirtualSampler:
    """One sampler: sequences by the decode step at which they end; a step takes what `decode` says."""

    decode: DecodeProfile
    index: int
    row: str
    shared: bool
    has_devices: bool = True
    alive: bool = True
    handed_over: bool = False
    active: list[tuple[int, int, Member, int]] = field(
        default_factory=list
    )  # ends at, order, member, began at
    waiting: deque[Member] = field(default_factory=deque)
    steps: float = 0.0
    cached: float = 0.0
    at: float = 0.0
    epoch: int = 0
    order: int = 0
    busy_since: float | None = None
    owed: float = 0.0
    """Seconds to take newer weights over, before it goes on."""
    slower: float = 1.0
    """Than `decode` says, as others compute at once."""

    def seconds(self, steps: float) -> float:
        """Of the next `steps` decode steps, in which no sequence ends."""
        model, n = self.decode, len(self.active)
        quadratic = self.slower * model.per_cached_token * n / 2
        return max(0.0, steps * self._linear + quadratic * steps * steps)

    @property
    def _linear(self) -> float:
        model, n = self.decode, len(self.active)
        return self.slower * (
            model.base + model.per_active * n + model.per_cached_token * (self.cached - n / 2)
        )

    def advance(self, now: float) -> None:
        """Bring its decode steps up to `now`: the inverse of `seconds`."""
        elapsed = now - self.at
        if elapsed <= 0:
            return
        self.at = now
        if not self.active or not self.has_devices:
            return
        n, linear = len(self.active), self._linear
        square = self.slower * self.decode.per_cached_token * n / 2
        steps = (
            elapsed / linear
            if square * elapsed < 1e-12 * linear * linear
            else ((linear * linear + 4 * square * elapsed) ** 0.5 - linear) / (2 * square)
        )
        steps = min(steps, self.active[0][0] - self.steps)
        self.steps += steps
        self.cached += steps * n

    def begin_next(self, now: float, rate: float | None) -> None:
        """Begin with the first that waits; `rate`: tokens read in a second, None: reading takes no time."""
        member = self.waiting.popleft()
        if rate is not None:
            self.at = max(self.at, now) + self.slower * member.cached / rate
        self.order += 1
        begins = math.ceil(self.steps - 1e-9)  # with the next decode step
        heapq.heappush(self.active, (begins + max(1, member.left), self.order, member, begins))
        self.cached += member.cached

    def end_next(self) -> list[Member]:
        """Those that end next, all with one decode step, which it has made now."""
        self.steps = float(self.active[0][0])
        ended = []
        while self.active and self.active[0][0] <= self.steps:
            ends, _, member, began = heapq.heappop(self.active)
            self.cached -= member.cached + ends - began
            ended.append(member)
        return ended

    def interrupted(self, now: float) -> list[Member]:
        """What it has begun by `now`, with the tokens that are there; it has nothing any more."""
        self.advance(now)
        members = []
        for ends, _, member, began in self.active:
            there = min(max(0, int(self.steps) - began), member.left - 1)
            members.append(Member(member.group, max(1, ends - began - there), member.cached + there))
        members += self.waiting
        self.active, self.waiting, self.cached = [], deque(), 0.0
        self.epoch += 1
        return members
