"""What is known of a policy: whether it is next, worse than the one before, or one that copies cannot load. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rl_api.service import ServiceSpec
from rl_api.service_status import Baseline, Candidate, PolicyVersion, ServiceStatus
from rl_operator.model.names import Manifest
from rl_operator.model.service import Control, Evaluation, VersionFigures, gate_text

_DEATHS: Final = 3
"""Of so many copies in a few minutes it is the policy that they die."""


def choose(
    spec: ServiceSpec, status: ServiceStatus, checkpoints: Sequence[PolicyVersion]
) -> PolicyVersion | None:
    """The policy that is to be tried next, of those that there are; None: none is."""
    serving, promotion = status.serving, spec.promotion
    open_ = [
        one
        for one in checkpoints
        if one.digest not in status.refused and (serving is None or one.digest != serving.digest)
    ]
    if promotion.mode == "manual" and spec.source.run is not None:
        if promotion.step is not None:
            return next((one for one in open_ if one.step == promotion.step), None)
        open_ = open_ if serving is None else []
    if serving is not None and spec.source.run is not None:
        open_ = [one for one in open_ if one.step > serving.step]
    return max(open_, key=lambda one: one.step, default=None)


def worse(spec: ServiceSpec, baseline: Baseline | None, figures: VersionFigures) -> str:
    """In what a policy that has the traffic is worse than bounds, as a sentence; empty: in nothing that is known."""
    rollback, probe = spec.promotion.rollback, spec.promotion.gate.probe
    known = baseline or Baseline()
    if figures.requests >= rollback.min_requests:
        usual = known.errors / known.requests if known.requests else 0.0
        most = usual + rollback.max_error_ratio
        if figures.error_ratio > most:
            return (
                f"{figures.errors} of {figures.requests} requests failed ({figures.error_ratio:.1%}), allowed: at most "
                f"{most:.1%}"
            )
        times = figures.token_seconds, known.token_seconds
        if times[0] is not None and times[1] and times[0] > rollback.max_latency_ratio * times[1]:
            return (
                f"its time per token is {1000 * times[0]:.1f} ms (95th percentile), allowed: at most "
                f"{rollback.max_latency_ratio:g} times that of the one before, {1000 * times[1]:.1f} ms"
            )
    if probe is not None and rollback.probe and figures.probe is not None:
        if known.probe is not None and figures.probe < known.probe - probe.max_drop:
            return (
                f"it scores {figures.probe:.3f} in the probe, allowed: at most {probe.max_drop:g} less than the one before, "
                f"{known.probe:.3f}"
            )
        if probe.min_score is not None and figures.probe < probe.min_score:
            return f"it scores {figures.probe:.3f} in the probe, allowed: at least {probe.min_score:g}"
    return ""


def all_serve(control: Control, version: str) -> bool:
    """Whether all copies that there are answer with a version."""
    return bool(control.replicas) and all(one.version == version for one in control.replicas)


def asked_so(found: Evaluation | None, serving: PolicyVersion | None, gate: Manifest) -> Evaluation | None:
    """The evaluation, where it is of what is to be known now: not before another gate, or beside another policy."""
    if found is None or not found.gate:  # a control of an older trainer does not say it
        return found
    digest = serving.digest if serving is not None else ""
    return found if (found.gate, found.serving) == (gate_text(gate), digest) else None


def load_error(control: Control, verdicts: bool = False) -> str:
    """Why a copy cannot load what it was told to; empty: nobody says so.

    `verdicts`: only what says something of the policy.
    """
    told = (one for one in control.replicas if one.error and not one.loading)
    return next((one.error for one in told if not (verdicts and one.retryable)), "")


def dies(control: Control, candidate: Candidate) -> str:
    """That copies die of a policy, as a sentence; empty: they do not. Where none is heard of, it may be the network."""
    deaths = control.versions.get(candidate.version, VersionFigures()).deaths if control.replicas else 0
    most = max(_DEATHS, (len(control.replicas) + deaths) // 2)
    return f"copies died with it {deaths} times, allowed: fewer than {most}" if deaths >= most else ""


def any_serves(control: Control, version: str) -> bool:
    """Whether a copy answers with a version."""
    return any(one.version == version for one in control.replicas)
