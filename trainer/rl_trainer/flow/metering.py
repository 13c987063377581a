"""Rates, waiting times and alarms of a queue. Pure: the caller passes the time (monotonic seconds)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class RateMeter:
    """Events per second over the last `window` seconds, kept in tenths of the window (constant memory)."""

    def __init__(self, window: float = 30.0) -> None:
        self.window = window
        self.total = 0
        self._start: float | None = None
        self._buckets: deque[list[float]] = deque()  # [bucket number, count]

    def add(self, now: float, count: int = 1) -> None:
        """Count events at time `now`."""
        if self._start is None:
            self._start = now
        bucket = now // (self.window / 10)
        if self._buckets and self._buckets[-1][0] == bucket:
            self._buckets[-1][1] += count
        else:
            self._buckets.append([bucket, count])
        self.total += count

    def rate(self, now: float) -> float:
        """Events per second; over the time since the first event while that is shorter than the window."""
        if self._start is None:
            return 0.0
        oldest = now // (self.window / 10) - 9
        while self._buckets and self._buckets[0][0] < oldest:
            self._buckets.popleft()
        span = max(min(self.window, now - self._start), self.window / 100)
        return sum(count for _, count in self._buckets) / span


@dataclass
class WaitMeter:
    """How long callers waited, in seconds: sum, count and the longest."""

    total: float = 0.0
    count: int = 0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one wait."""
        self.total += seconds
        self.count += 1
        self.longest = max(self.longest, seconds)

    def as_dict(self) -> dict[str, float]:
        """JSON form: `seconds`, `count`, `longest`."""
        return {"seconds": round(self.total, 6), "count": self.count, "longest": round(self.longest, 6)}


@dataclass
class FillAlarm:
    """Says when a queue has been full, or empty, without a break for longer than `bound` seconds."""

    bound: float = 60.0
    _since: dict[str, float] = field(default_factory=dict)

    def observe(self, now: float, filled: int, capacity: int) -> None:
        """Tell the fill after each change (and before reading `sentences`)."""
        for state, holds in (("full", filled >= capacity), ("empty", filled == 0)):
            if holds:
                self._since.setdefault(state, now)
            else:
                self._since.pop(state, None)

    def sentences(self, now: float, name: str = "buffer") -> list[str]:
        """One sentence per condition that has lasted longer than the bound, with what to do."""
        advice = {
            "full": "learning is the slower side: add learners, or take fewer samplers",
            "empty": "sampling is the slower side: add samplers, or raise buffer.maxStaleness",
        }
        return [
            f"the {name} has been {state} for {now - since:.0f} s; {advice[state]}"
            for state, since in sorted(self._since.items())
            if now - since > self.bound
        ]
