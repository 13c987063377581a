"""From what was measured to a verdict: the paired difference with its interval, and the limits. Pure.

The rule for held-out prompts and probe: let d be the difference of the two policies' shares of right answers
(candidate - serving) over the same prompts, and [low, high] its confidence interval. The candidate fails where
high < -maxDrop: where the data say that it is worse by more than `maxDrop`, and not only by chance. A difference that the
data cannot tell from `maxDrop` passes, so few prompts find large drops only: with maxDrop 0, 95 % and 128 prompts it takes
6 that the serving policy alone gets right, more where the candidate alone gets some. `minScore` has no interval.

The interval is Bonett and Price's adjusted Wald interval ("Adjusted Wald confidence interval for a difference of binomial
proportions based on paired data", Journal of Educational and Behavioral Statistics 37(4), 2012, 479-488). Of n prompts a are
answered right by the candidate alone and b by the serving policy alone. With p = (a + 1) / (n + 2), q = (b + 1) / (n + 2)
it is

    p - q  -+  z sqrt((p + q - (p - q)^2) / (n + 2)),    cut off at -1 and 1,

z the normal quantile of (1 + confidence) / 2. Unlike the plain one it has a width where a and b are 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rl_serve.gate.criteria import Gate
from rl_serve.gate.report import Agreement, Comparison, Latency, Report


@dataclass(frozen=True)
class Paired:
    """Whether each prompt was answered right, by the candidate and, where there is one, by the serving policy."""

    candidate: Sequence[bool]
    serving: Sequence[bool] | None

    def __post_init__(self) -> None:
        if self.serving is not None and len(self.serving) != len(self.candidate):
            raise ValueError(f"{len(self.candidate)} answers against {len(self.serving)}: they are no pairs")


@dataclass(frozen=True)
class Measured:
    """What is known of a candidate; `problem`: a sentence about why it cannot be served at all."""

    problem: str = ""
    held_out: Paired | None = None
    probe: Paired | None = None
    latency: Latency | None = None
    agreement: Agreement | None = None


def judge(gate: Gate, measured: Measured) -> Report:
    """The verdict over what was measured: every part that `gate` has must hold, in the order of the fields of `Gate`.

    A part that could not be measured (no prompts, a number that is none) fails: nothing passes that nothing is known of.
    """
    held_out = compare(measured.held_out, _confidence(gate.held_out))
    probe = compare(measured.probe, _confidence(gate.probe))
    latency, agreement = measured.latency, measured.agreement
    failures = list(_failures(gate, measured, held_out, probe))
    return Report(
        passed=not failures,
        message=failures[0] if failures else _passed(gate, held_out, probe, latency, agreement),
        held_out=held_out,
        probe=probe,
        latency=latency if latency and _finite(*vars(latency).values()) else None,
        agreement=agreement if agreement and _finite(agreement.mean) else None,
    )


def compare(scores: Paired | None, confidence: float) -> Comparison | None:
    """Shares and difference; None without any prompt."""
    if scores is None or not scores.candidate:
        return None
    n = len(scores.candidate)
    candidate = sum(scores.candidate) / n
    if scores.serving is None:
        return Comparison(candidate, None, None, None, None, n)
    serving = sum(scores.serving) / n
    low, high = interval(scores.candidate, scores.serving, confidence)
    return Comparison(candidate, serving, candidate - serving, low, high, n)


def interval(candidate: Sequence[bool], serving: Sequence[bool], confidence: float) -> tuple[float, float]:
    """Lower and upper end of the difference of two shares over the same prompts; the module says which interval it is."""
    pairs = list(zip(candidate, serving, strict=True))
    p = (sum(one and not other for one, other in pairs) + 1) / (len(pairs) + 2)
    q = (sum(other and not one for one, other in pairs) + 1) / (len(pairs) + 2)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = z * math.sqrt((p + q - (p - q) ** 2) / (len(pairs) + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def _failures(
    gate: Gate, measured: Measured, held_out: Comparison | None, probe: Comparison | None
) -> Iterator[str]:
    if measured.problem:
        yield measured.problem
    if gate.held_out:
        yield from _worse("held-out prompts", held_out, gate.held_out.max_drop, gate.held_out.confidence)
    if gate.probe:
        least = gate.probe.min_score
        if probe and least is not None and probe.candidate < least:
            yield f"probe: {probe.candidate:.3f} right of {probe.n}, allowed: minScore {least:g} or more"
        yield from _worse("probe", probe, gate.probe.max_drop, gate.probe.confidence)
    if gate.latency:
        yield from _slower(measured.latency, gate.latency.max_ratio)
    if gate.agreement:
        yield from _apart(measured.agreement, gate.agreement.max_difference)


def _worse(name: str, found: Comparison | None, max_drop: float, confidence: float) -> Iterator[str]:
    if found is None:
        yield f"{name}: none was answered, so nothing is known of the candidate"
    elif found.high is not None and found.high < -max_drop:
        yield f"{_told(name, found, confidence)}: worse by more than maxDrop {max_drop:g} allows"


def _slower(found: Latency | None, most: float) -> Iterator[str]:
    if found is None or not _finite(*vars(found).values()):
        yield "latency: no token was timed, so nothing is known of the candidate"
    elif found.ratio is not None and found.ratio > most:
        yield f"{_latency(found)}, allowed: maxRatio {most:g} or less"


def _apart(found: Agreement | None, most: float) -> Iterator[str]:
    if found is None or not found.n or not _finite(found.mean):
        yield "agreement: no token has a log-probability, so nothing is known of the candidate"
    elif found.mean > most:
        yield f"{_agreement(found)}, allowed: maxDifference {most:g} or less"


def _passed(
    gate: Gate,
    held_out: Comparison | None,
    probe: Comparison | None,
    latency: Latency | None,
    agreement: Agreement | None,
) -> str:
    said = []
    if held_out:
        said.append(_told("held-out prompts", held_out, _confidence(gate.held_out)))
    if probe:
        said.append(_told("probe", probe, _confidence(gate.probe)))
    if latency:
        said.append(_latency(latency))
    if agreement:
        said.append(_agreement(agreement))
    return "; ".join(said) or "the gate asks for nothing"


def _told(name: str, found: Comparison, confidence: float) -> str:
    if found.serving is None:
        return f"{name}: {found.candidate:.3f} right of {found.n}, no serving policy to compare with"
    return (
        f"{name}: {found.candidate:.3f} right of {found.n}, the serving policy {found.serving:.3f}, difference "
        f"{found.difference:+.3f} ({100 * confidence:.4g} % interval {found.low:+.3f} to {found.high:+.3f})"
    )


def _latency(found: Latency) -> str:
    text = f"latency: {found.candidate * 1000:.3g} ms for a token"
    if found.serving is None or found.ratio is None:
        return text
    return f"{text}, the serving policy {found.serving * 1000:.3g} ms, {found.ratio:.2f} times as long"


def _agreement(found: Agreement) -> str:
    return f"agreement: log-probabilities of engine and forward pass differ by {found.mean:.2g} on average (n {found.n})"


def _confidence(rule: object) -> float:
    return float(getattr(rule, "confidence", 0.95))


def _finite(*values: float | None) -> bool:
    return all(value is None or math.isfinite(value) for value in values)
