"""What was answered in the last minutes, by the policy's version: counts and durations that add up over replicas. Pure.

A replica keeps `Window`s and hands out what they hold; who adds these up needs no memory of its own, so either may be
started anew at any time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SECONDS: Final = 300
_SLICE: Final = 10
# Durations are counted in classes, each that much wider than the one before: a percentile is within 2 % of the true one.
_GROWTH: Final = math.log(1.04)
_SHORTEST: Final = 1e-6


class Durations(Counter[int]):
    """How many durations fell into each class."""

    def note(self, seconds: float) -> None:
        """One more."""
        self[math.floor(math.log(max(seconds, _SHORTEST)) / _GROWTH)] += 1

    def percentile(self, share: float) -> float | None:
        """Seconds that `share` (0 to 1) of them are not longer than; None: there are none."""
        rank, seen = share * self.total(), 0
        for number in sorted(self):
            seen += self[number]
            if seen >= rank:
                return math.exp((number + 0.5) * _GROWTH)
        return None

    def summary(self) -> dict[str, float] | None:
        """Median and 95th percentile, seconds; None: there are none."""
        middle, high = self.percentile(0.5), self.percentile(0.95)
        return None if middle is None or high is None else {"p50": round(middle, 6), "p95": round(high, 6)}


@dataclass(frozen=True)
class Answered:
    """One request that has ended.

    Attributes:
        version: of the policy; empty: there was none.
        code: HTTP status, also where the beginning of a stream had said 200.
        prompt_tokens, tokens: of its prompts, and of all its answers.
        latency: seconds until the end.
        ttft: seconds until the first piece; None: there was none.
        prefilled: of the prompts' tokens, those that another copy has computed.
    """

    version: str
    code: int
    prompt_tokens: int
    tokens: int
    latency: float
    ttft: float | None
    prefilled: int = 0

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None: it cannot be told."""
        if self.ttft is None or self.tokens < 2:
            return None
        return max(0.0, self.latency - self.ttft) / (self.tokens - 1)


@dataclass
class Tally:
    """What was answered with one version; `deaths`: replicas that ended with it, or loading it, and
    had not been told to.
    """

    requests: int = 0
    errors: int = 0
    tokens: int = 0
    deaths: int = 0
    latency: Durations = field(default_factory=Durations)
    ttft: Durations = field(default_factory=Durations)
    tpot: Durations = field(default_factory=Durations)

    def note(self, one: Answered) -> None:
        """One more. Errors are the server's: a client's mistake, or one who goes or comes too often, is no request here."""
        if 400 <= one.code < 500:
            return
        self.requests += 1
        self.tokens += one.tokens
        if one.code >= 500:
            self.errors += 1
            return
        self.latency.note(one.latency)
        if one.ttft is not None:
            self.ttft.note(one.ttft)
        if one.tpot is not None:
            self.tpot.note(one.tpot)

    def add(self, other: Tally) -> None:
        """Those of another one as well."""
        self.requests += other.requests
        self.errors += other.errors
        self.tokens += other.tokens
        self.deaths += other.deaths
        self.latency.update(other.latency)
        self.ttft.update(other.ttft)
        self.tpot.update(other.tpot)

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        names = ("requests", "errors", "tokens", "deaths")
        counts = {name: getattr(self, name) for name in names}
        durations = {"latency": self.latency, "ttft": self.ttft, "tpot": self.tpot}
        return counts | {name: one.summary() for name, one in durations.items()}


def slice_of(now: float) -> int:
    """Number of the slice that `now` (seconds since 1970) is in."""
    return int(now) // _SLICE


# By slice of time (seconds since 1970, in tens) and version.
Slices = Mapping[int, Mapping[str, Tally]]


class Window:
    """The last minutes of one replica."""

    def __init__(self) -> None:
        self._slices: dict[int, dict[str, Tally]] = {}

    def note(self, one: Answered, now: float) -> None:
        """One more, at `now` (seconds since 1970). Without a version it is of no policy."""
        if one.version:
            self._slices.setdefault(slice_of(now), {}).setdefault(one.version, Tally()).note(one)

    def slices(self, now: float) -> Slices:
        """What is still of interest; the rest is forgotten."""
        self._slices = {number: one for number, one in self._slices.items() if _is_recent(number, now)}
        return self._slices


def add_up(windows: Iterable[Slices], now: float) -> dict[str, Tally]:
    """By version, what several replicas have answered in the minutes before `now`."""
    found: dict[str, Tally] = {}
    for window in windows:
        for number, by_version in window.items():
            if _is_recent(number, now):
                for version, tally in by_version.items():
                    found.setdefault(version, Tally()).add(tally)
    return found


def _is_recent(number: int, now: float) -> bool:
    return (number + 1) * _SLICE > now - SECONDS
