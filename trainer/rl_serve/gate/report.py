"""What the gate has found, as a value that travels as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Comparison:
    """Shares of right answers to the same prompts.

    Attributes:
        candidate, serving: shares, 0 to 1; `serving` is None where there is no serving policy.
        difference: candidate - serving.
        low, high: the interval of the difference.
        n: prompts.
    """

    candidate: float
    serving: float | None
    difference: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Latency:
    """Seconds between two tokens of an answer, medians; `ratio`: the median of candidate / serving over the rounds."""

    candidate: float
    serving: float | None
    ratio: float | None


@dataclass(frozen=True)
class Agreement:
    """Mean absolute difference of the log-probabilities of `n` tokens: as the engine sampled them, and of a plain forward
    pass.
    """

    mean: float
    n: int


@dataclass(frozen=True)
class Report:
    """The verdict.

    Attributes:
        passed: the candidate may be served.
        message: one sentence: the first part that failed, with its numbers, or all parts in short.
        held_out, probe, latency, agreement: what was measured; None: it was not asked for, or it was not come so far.
    """

    passed: bool
    message: str
    held_out: Comparison | None = None
    probe: Comparison | None = None
    latency: Latency | None = None
    agreement: Agreement | None = None

    def to_json(self) -> dict[str, Any]:
        """As the control interface and an object's status have it; every number in it is finite."""
        return {
            "passed": self.passed,
            "message": self.message,
            "heldOut": _fields(self.held_out),
            "probe": _fields(self.probe),
            "latency": _fields(self.latency),
            "agreement": _fields(self.agreement),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Report:
        """What `to_json` gave. KeyError or TypeError: it is none."""
        return cls(
            passed=found["passed"],
            message=found["message"],
            held_out=_read(Comparison, found["heldOut"]),
            probe=_read(Comparison, found["probe"]),
            latency=_read(Latency, found["latency"]),
            agreement=_read(Agreement, found["agreement"]),
        )


def _fields(part: Comparison | Latency | Agreement | None) -> dict[str, Any] | None:
    return None if part is None else dict(vars(part))


def _read(kind: type[_Part], found: Mapping[str, Any] | None) -> _Part | None:
    return None if found is None else kind(**found)
