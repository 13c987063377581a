"""What the gate asks of a candidate: its parts and their limits. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_api.errors import InvalidConfig
from rl_api.printable import printable

MOST_SAMPLES: Final = 100_000


@dataclass(frozen=True)
class HeldOutRule:
    """Prompts of the candidate's run that training never saw, answered greedily by both policies.

    Attributes:
        samples: at most that many of them; the first ones of the run's own held-out prompts.
        confidence: level of the interval, 0.5 to 0.9999.
        max_drop: how much lower than the serving policy's the candidate's share of right answers may be, 0 to 1.
    """

    samples: int = 128
    confidence: float = 0.95
    max_drop: float = 0.0


@dataclass(frozen=True)
class ProbeRule:
    """Prompts of the service's own, with scorers that no reward of any run has a part in.

    Attributes:
        max_drop: as of the held-out prompts.
        min_score: least share of right answers, whatever the serving policy does; None: none.
        confidence: level of the interval.
    """

    max_drop: float = 0.05
    min_score: float | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class LatencyRule:
    """`max_ratio`: how many times as long as the serving policy the candidate may take for a token."""

    max_ratio: float = 1.5


@dataclass(frozen=True)
class AgreementRule:
    """`max_difference`: how far the engine's log-probabilities may be from those of a plain forward pass, on average."""

    max_difference: float = 0.05


@dataclass(frozen=True)
class Gate:
    """What is looked at; a part that is None is not."""

    held_out: HeldOutRule | None = None
    probe: ProbeRule | None = None
    latency: LatencyRule | None = None
    agreement: AgreementRule | None = None


def parse_gate(found: Any) -> Gate:
    """A gate as an RLPolicyService says it (`promotion.gate`), in camelCase; null and missing are the same.

    Raises:
        InvalidConfig: one sentence about the first mistake.
    """
    parts = _Fields("gate", {} if found is None else found)
    held_out = probe = latency = agreement = None
    if one := parts.part("heldOut"):
        rule = HeldOutRule()
        held_out = HeldOutRule(
            samples=one.whole("samples", rule.samples, 1, MOST_SAMPLES),
            confidence=one.number("confidence", rule.confidence, 0.5, 0.9999),
            max_drop=one.number("maxDrop", rule.max_drop, 0.0, 1.0),
        )
        one.end()
    if one := parts.part("probe"):
        probe = ProbeRule(
            max_drop=one.number("maxDrop", ProbeRule().max_drop, 0.0, 1.0),
            min_score=one.optional("minScore", 0.0, 1.0),
            confidence=one.number("confidence", ProbeRule().confidence, 0.5, 0.9999),
        )
        one.end()
    if one := parts.part("latency"):
        latency = LatencyRule(one.number("maxRatio", LatencyRule().max_ratio, 0.1, 1000.0))
        one.end()
    if one := parts.part("agreement"):
        agreement = AgreementRule(one.number("maxDifference", AgreementRule().max_difference, 0.0, 100.0))
        one.end()
    parts.end()
    return Gate(held_out, probe, latency, agreement)


class _Fields:
    """Fields of an object, taken one by one; what nobody took is refused at its `end`."""

    def __init__(self, path: str, found: Any) -> None:
        if not isinstance(found, Mapping):
            raise InvalidConfig(f"{path}: found {_shown(found)}, allowed: an object")
        self._path = path
        self._left = {name: value for name, value in found.items() if value is not None}

    def part(self, name: str) -> _Fields | None:
        value = self._left.pop(name, None)
        return None if value is None else _Fields(f"{self._path}.{name}", value)

    def optional(self, name: str, low: float, high: float) -> float | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not sound or not low <= value <= high:
            raise InvalidConfig(
                f"{self._path}.{name}: found {_shown(value)}, allowed: a number from {low:g} to {high:g}"
            )
        return float(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        found = self.optional(name, low, high)
        return default if found is None else found

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        found = self.number(name, default, low, high)
        if found != int(found):
            raise InvalidConfig(
                f"{self._path}.{name}: found {found:g}, allowed: a whole number from {low} to {high}"
            )
        return int(found)

    def end(self) -> None:
        for name in self._left:
            raise InvalidConfig(f"{self._path}.{printable(name, 80)}: unknown field; take it out")


def _shown(value: Any) -> str:
    try:
        return printable(json.dumps(value), 80)
    except (TypeError, ValueError):
        return printable(repr(value), 80)
