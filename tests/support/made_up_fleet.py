"""A day of a fleet that never was: three teams, two pools, runs that wait, train, are evicted and fail.

Written down as the operator's and Kueue's metrics would have been scraped each minute (OpenMetrics with times), for a
Prometheus to answer from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

MINUTES: Final = 24 * 60
QUOTA: Final = {
    "vision": {"h100": 32, "l4": 16},
    "speech": {"h100": 16, "l4": 16},
    "agents": {"h100": 16, "l4": 0},
}
"""Accelerators of each team's queue by pool, all in one cohort."""

STARTS: Final = 6
"""Minutes from admission to the first step."""

Labels = dict[str, str]


@dataclass
class Run:
    """One run, and what is to happen to it: (minute, wait | run | evict | drain | fail | end)."""

    team: str
    name: str
    pool: str
    accelerators: int
    plan: tuple[tuple[int, str], ...]
    samplers_work: float = 0.9
    learners_work: float = 0.7
    checkpoint_minutes: int = 30
    state: str = ""
    before: str = ""
    since: int = 0
    attempts: int = 0
    evictions: dict[str, int] = field(default_factory=lambda: {"Preempted": 0, "NodeDrained": 0})
    waited: float = 0.0
    step: float = 0.0
    saved_at: int = -1
    unsaved: float = 0.0
    became: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("trained", "started", "evicted", "failed"), 0.0)
    )

    def tick(self, minute: int) -> None:
        """One minute passes."""
        for at, what in self.plan:
            if at == minute:
                self._happens(what, minute)
        held = self.accelerators * 60.0
        if self.state == "wait":
            self.waited += 60.0
        elif self.state == "run" and minute - self.since < STARTS:
            self.became["started"] += held
        elif self.state == "run":
            self.unsaved += held
            self.step += 0.8
            if (minute - self.since) % self.checkpoint_minutes == 0:
                self._saves(minute)

    def _happens(self, what: str, minute: int) -> None:
        taken = what in ("evict", "drain")
        if taken or what == "end":  # a checkpoint first; what was under way in its step is lost
            lost = min(self.unsaved, self.accelerators * 45.0) if taken else 0.0
            self.became["evicted"] += lost
            self.unsaved -= lost
            self._saves(minute)
        elif what == "fail":
            self.became["failed"] += self.unsaved
            self.unsaved = 0.0
        if taken:
            self.evictions["Preempted" if what == "evict" else "NodeDrained"] += 1
        self.attempts += what == "run" and self.before not in ("evict", "drain")
        self.state, self.before, self.since = "wait" if taken or what == "fail" else what, what, minute

    def _saves(self, minute: int) -> None:
        self.became["trained"] += self.unsaved
        self.unsaved, self.saved_at = 0.0, minute

    @property
    def trains(self) -> bool:
        """Whether it holds accelerators."""
        return self.state == "run"


def fleet() -> tuple[Run, ...]:
    """All runs, as they are before the day."""
    return (
        Run("vision", "caption-8b", "h100", 32, ((0, "wait"), (8, "run"), (540, "evict"), (700, "run")), 0.93, 0.62),
        Run("vision", "ocr-3b", "l4", 8, ((30, "wait"), (35, "run"), (410, "fail"), (418, "run"), (1100, "end")), 0.55, 0.9),
        Run("vision", "grounding", "l4", 16, ((600, "wait"), (1105, "run")), 0.9, 0.85),
        Run("speech", "asr-reward", "h100", 16, ((60, "wait"), (66, "run"), (930, "end")), 0.88, 0.8),
        Run("speech", "tts-dpo", "l4", 16, ((10, "wait"), (14, "run"), (780, "drain"), (850, "run")), 0.35, 0.97),
        Run("agents", "swe-14b", "h100", 16, ((0, "wait"), (5, "run"), (820, "fail"), (830, "run")), 0.96, 0.24),
        Run("agents", "urgent-fix", "h100", 32, ((536, "wait"), (545, "run"), (695, "end")), 0.92, 0.75),
        Run("agents", "browser-7b", "h100", 16, ((905, "wait"), (934, "run")), 0.8, 0.7, 60),
        Run("speech", "diarize", "h100", 16, ((1040, "wait"),)),
        Run("agents", "planner", "h100", 32, ((1180, "wait"),)),
        Run("agents", "tool-use", "h100", 16, ((1300, "wait"),)),
    )  # fmt: skip


def history(end: float) -> str:
    """The whole day up to a time, as OpenMetrics."""
    found: dict[str, list[str]] = {}
    runs = fleet()
    for minute in range(MINUTES):
        for run in runs:
            run.tick(minute)
        at = end - (MINUTES - 1 - minute) * 60.0
        for name, labels, value in _samples(runs, minute, at):
            text = ",".join(f'{key}="{said}"' for key, said in labels.items())
            found.setdefault(name, []).append(f"{name}{{{text}}} {value:.12g} {at:.3f}")
    lines = []
    for name, samples in found.items():
        counter = name.endswith("_total")
        lines += [f"# TYPE {name.removesuffix('_total')} {'counter' if counter else 'gauge'}", *samples]
    return "\n".join([*lines, "# EOF", ""])


def _samples(runs: Sequence[Run], minute: int, at: float) -> Iterator[tuple[str, Labels, float]]:
    for run in runs:
        if run.state:
            yield from _of_run(run, minute, at)
    for team, pools in QUOTA.items():
        yield from _of_team(team, pools, [run for run in runs if run.team == team], minute, at)


def _of_run(run: Run, minute: int, at: float) -> Iterator[tuple[str, Labels, float]]:
    labels = {"namespace": run.team, "run": run.name}
    pool = labels | {"pool": run.pool}
    for outcome, seconds in run.became.items():
        value = seconds + (run.unsaved if outcome == "trained" else 0.0)
        yield "rltrain_run_accelerator_seconds", pool | {"outcome": outcome}, value
    yield "rltrain_run_waited_seconds", labels, run.waited
    yield "rltrain_run_attempts", labels, run.attempts
    yield "rltrain_run_evictions", labels, sum(run.evictions.values())
    yield "rltrain_run_drains", labels, run.evictions["NodeDrained"]
    result = {"end": "succeeded"}.get(run.state, "")
    yield "rltrain_run_info", labels | {"spec_hash": run.name, "result": result}, 1
    if run.state == "end":
        return
    starts = run.state == "run" and minute - run.since < STARTS
    phase = "Pending" if run.state == "wait" else "Starting" if starts else "Training"
    yield "rltrain_run_phase", labels | {"phase": phase}, 1
    yield "rltrain_run_step", labels, math.floor(run.step)
    if run.saved_at >= 0:
        yield "rltrain_run_checkpoint_timestamp_seconds", labels, at - (minute - run.saved_at) * 60.0
    if run.state == "wait":
        yield "rltrain_run_waits", labels | {"condition": "Admitted", "reason": "Queued"}, 1
        return
    if starts:
        yield "rltrain_run_waits", labels | {"condition": "ClusterReady", "reason": "Starting"}, 1
    yield "rltrain_run_accelerators", pool, run.accelerators
    yield "rltrain_run_unsaved_accelerator_seconds", labels, run.unsaved
    if not starts:
        wave = 0.04 * math.sin(minute / 17.0 + len(run.name))
        yield "rltrain_run_sampler_busy_ratio", labels, min(run.samplers_work + wave, 1.0)
        yield "rltrain_run_learner_busy_ratio", labels, min(run.learners_work - wave, 1.0)


def _of_team(
    team: str, pools: dict[str, int], runs: Sequence[Run], minute: int, at: float
) -> Iterator[tuple[str, Labels, float]]:
    labels = {"namespace": team}
    waiting = sorted((run for run in runs if run.state == "wait"), key=lambda run: run.since)
    for place, run in enumerate(waiting, 1):
        of = labels | {"run": run.name, "queue": team}
        yield "rltrain_run_queue_position", of, place
        yield "rltrain_run_queued_timestamp_seconds", of, at - (minute - run.since) * 60.0
    yield "rltrain_team_waiting_runs", labels, len(waiting)
    yield "rltrain_team_waited_seconds_total", labels, sum(run.waited for run in runs)
    for reason in ("Preempted", "NodeDrained"):
        count = sum(run.evictions[reason] for run in runs)
        yield "rltrain_team_evictions_total", labels | {"reason": reason}, count
    for pool, quota in pools.items():
        here = [run for run in runs if run.pool == pool]
        held = sum(run.accelerators for run in here if run.trains)
        yield "rltrain_team_accelerators", labels | {"pool": pool}, held
        for outcome in ("trained", "started", "evicted", "failed"):
            seconds = sum(run.became[outcome] for run in here)
            yield (
                "rltrain_team_accelerator_seconds_total",
                labels | {"pool": pool, "outcome": outcome},
                seconds,
            )
        of = {"cohort": "ml", "cluster_queue": team, "flavor": pool, "resource": "nvidia.com/gpu"}
        of |= {"replica_role": "leader"}
        yield "kueue_cluster_queue_nominal_quota", of, quota
        yield "kueue_cluster_queue_resource_reservation", of, held
