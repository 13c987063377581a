"""What came of the faults, as JSON and as tables. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fault_plan import KINDS, PHASES, TARGETS, WORLDS

_TIMES: Final = ("seconds", "freed")


@dataclass
class Result:
    """What came of one fault.

    Attributes:
        step: the last one before it.
        how: "went on", "resumed" (it ended with a sentence, and went on from its checkpoint), or "failed".
        seconds: from the fault to the end of the first step that began after it.
        freed: seconds from the death of a sampler or a rank until the run has taken back what it had, where they share
            devices.
        sentence: that the run ended with.
        failure: what was not as it must be.
    """

    number: int
    world: str
    kind: str
    target: str
    phase: str
    step: int = 0
    how: str = "failed"
    seconds: float = math.nan
    freed: float = math.nan
    sentence: str = ""
    failure: str = ""


@dataclass
class Campaign:
    """All of it. `plan`: what was asked for, of which code; `runs`: a line about each run; `failures`: what was wrong with
    whole runs."""

    plan: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Everything that was not as it must be."""
        found = [
            f"fault {one.number} ({one.kind} {one.target} in {one.phase}, {one.world}): {one.failure}"
            for one in self.results
            if one.failure
        ]
        return found + self.failures

    def differences(self, plan: Mapping[str, Any]) -> str:
        """What `plan` asks for that this one does not, as words; empty: it is the same."""
        names = [name for name in {**self.plan, **plan} if self.plan.get(name) != plan.get(name)]
        return ", ".join(
            f"{name}: {_said(self.plan.get(name))}, now {_said(plan.get(name))}" for name in names
        )

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        plain = asdict(self)
        for one, name in itertools.product(plain["results"], _TIMES):
            one[name] = None if math.isnan(one[name]) else round(one[name], 3)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Campaign:
        """The inverse of `to_json`."""
        results = [
            Result(**{**one, **{name: math.nan for name in _TIMES if one.get(name) is None}})
            for one in data["results"]
        ]
        # Files of before there was a plan in them are of no plan that can be asked for.
        return cls(data.get("plan", {}), results, list(data["runs"]), list(data["failures"]))


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "not said" if value is None else str(value)


def share_of(sorted_values: Sequence[float], share: float) -> float:
    """The value below or at which so large a share of them is (nearest rank)."""
    return sorted_values[max(0, math.ceil(share * len(sorted_values)) - 1)]


def tables(campaign: Campaign) -> str:
    """Markdown: recovery seconds by kind of fault and target, and how many faults met which phase of which run."""
    rows = [
        ["fault", "target", "faults", "went on", "resumed", "failed", "p50 s", "p95 s", "longest s"],
        ["---"] * 2 + ["---:"] * 7,
    ]
    for kind in KINDS:
        for target in TARGETS:
            of_both = [one for one in campaign.results if (one.kind, one.target) == (kind, target)]
            if of_both:
                rows.append([kind, target, *_row(of_both)])
    rows.append(["all", "", *_row(campaign.results)])
    met = Counter((one.world, one.phase) for one in campaign.results)
    met.update(("all", one.phase) for one in campaign.results)
    worlds = [world for world in (*WORLDS, "all") if any((world, phase) in met for phase in PHASES)]
    columns = [phase for phase in PHASES if met["all", phase]]
    phases = [["run", *columns], ["---"] + ["---:"] * len(columns)]
    phases += [[world, *(str(met[world, phase]) for phase in columns)] for world in worlds]
    text = f"{_lines(rows)}\n\nFaults by the run and the phase that they met:\n\n{_lines(phases)}"
    if times := sorted(one.freed for one in campaign.results if not math.isnan(one.freed)):
        text += (
            f"\n\nDevices that were shared were taken back {share_of(times, 0.5):.2f} s after the death of a sampler or a "
            f"rank (median of {len(times)}), at most {times[-1]:.2f} s."
        )
    return text


def _row(results: Sequence[Result]) -> list[str]:
    how = Counter("failed" if one.failure else one.how for one in results)
    times = sorted(one.seconds for one in results if not math.isnan(one.seconds))
    seconds = [f"{share_of(times, share):.1f}" for share in (0.5, 0.95, 1.0)] if times else ["-"] * 3
    return [str(len(results)), *(str(how[one]) for one in ("went on", "resumed", "failed")), *seconds]


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


_FEWEST = 4


def beyond_noise(found: Sequence[float], expected: Sequence[float]) -> str:
    """Empty where the last thirds of two learning curves agree: their means within four standard errors, or 0.03 reward.

    `found` and `expected`: mean rewards of the same steps. Of fewer than `_FEWEST` in a third nobody knows the noise.
    """
    last = len(found) // 3
    if last < _FEWEST:
        return ""
    ours, theirs = list(found)[-last:], list(expected)[: len(found)][-last:]
    error = math.sqrt(sum(statistics.pvariance(part) / len(part) for part in (ours, theirs)))
    difference = abs(statistics.fmean(ours) - statistics.fmean(theirs))
    allowed = max(0.03, 4 * error)
    if difference <= allowed:
        return ""
    return f"mean reward of the last {last} steps differs by {difference:.3f} from the undisturbed, allowed: {allowed:.3f}"
