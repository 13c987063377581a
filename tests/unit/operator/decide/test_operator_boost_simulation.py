"""Fifty urgent runs come over three long ones: what is lost with boosts, and without, where Kueue picks the victims."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from rl_api.progress import MOST_EVICTIONS, Attempt, CheckpointStatus, Eviction, Progress, RunStatus
from rl_operator.decide import boost
from rl_operator.decide.eviction_cost import measured, predicted_seconds, trains
from rl_operator.model.workload import Boosts, Workload

# Long simulations: to watch each of their lines would take twice as long again, and other tests run the same ones.
pytestmark = pytest.mark.no_cover

BORN = datetime(2026, 7, 1, tzinfo=UTC)
TICK = 30
"""Seconds between two looks at a run."""
ARRIVALS, STEP_SECONDS, ACCELERATORS, PLACES = 50, 30, 8, 3

KUEUE = Boosts(gate=True, levels=(0, 1000), manager="us")
KINDS = {"often": (300, 60), "hourly": (3600, 600), "large": (3600, 600)}
"""Seconds of training between two checkpoints, and of a restart."""


@dataclass
class Long:
    """A long run, as its status tells of it, and what Kueue knows of its Workload."""

    interval: int
    restart: int
    admitted: datetime | None = BORN
    boost: int | None = None
    written: datetime | None = None
    trained: int = 0
    """Seconds of training that are not lost."""
    loading: int = 0
    lost: list[int] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    """What the status says of it."""
    status: RunStatus = field(
        default_factory=lambda: RunStatus(attempts=[Attempt(number=1, start_time=BORN)], progress=Progress())
    )

    @property
    def saved(self) -> int:
        """Seconds of training in the last checkpoint."""
        return self.status.checkpoint.step * STEP_SECONDS if self.status.checkpoint else 0

    def update(self, **fields: object) -> None:
        self.status = self.status.model_copy(update=fields)

    def look(self, now: datetime, boosted: bool) -> None:
        """Train for a tick, and do what the operator does."""
        if self.admitted is not None:
            self.train(now)
        if not boosted:
            return
        workload = Workload(
            "run", admitted=self.admitted is not None, boost=self.boost, boost_writers={"us": self.written}
        )
        wanted = boost.wanted(workload, KUEUE, self.status, ACCELERATORS, now)
        if wanted is not None:
            paused = self.written is None or now - self.written >= boost.PAUSE
            assert wanted == 0 or paused or not self.boost
            self.boost, self.written = wanted, now

    def train(self, now: datetime) -> None:
        if self.loading > 0:
            self.loading -= TICK
            return
        attempt = self.status.attempts[0]
        if trains(attempt, self.status, now):
            self.update(attempts=[attempt.model_copy(update={"trained_time": now})])
        self.trained += TICK
        self.update(progress=Progress(step=self.trained // STEP_SECONDS))
        if self.trained - self.saved >= self.interval:
            self.update(checkpoint=CheckpointStatus(step=self.trained // STEP_SECONDS, uri="/c", time=now))
        self.measure(now)

    def measure(self, now: datetime) -> None:
        for place, one in enumerate(self.status.evictions):
            if one.lost_seconds is None and (cost := measured(one, self.status, now)) is not None:
                self.measured.append(cost)
                known = one.model_copy(update={"lost_seconds": cost})
                evictions = self.status.evictions
                self.update(evictions=[*evictions[:place], known, *evictions[place + 1 :]])

    def evict(self, now: datetime) -> None:
        """No checkpoint comes within the grace period: the work since the last one is lost."""
        evicted = Eviction(
            attempt=1,
            reason="Preempted",
            time=now,
            step=self.trained // STEP_SECONDS,
            resumed_step=self.saved // STEP_SECONDS,
            predicted_seconds=predicted_seconds(self.status, now),
        )
        self.lost.append(self.trained - self.saved + self.restart)
        self.trained, self.loading, self.admitted = self.saved, self.restart, None
        self.update(evictions=[*self.status.evictions, evicted][-MOST_EVICTIONS:])

    def admit(self, now: datetime) -> None:
        assert not self.boost, "a run that waits has no boost"
        self.admitted = now
        *before, last = self.status.evictions
        self.update(evictions=[*before, last.model_copy(update={"resumed_time": now})])


def simulate(order: Sequence[str], seed: int, boosted: bool) -> tuple[list[Long], float]:
    """Long runs, admitted in this order, fill a queue; each urgent one takes the place of one for a while. Also how long."""
    chance = random.Random(seed)
    runs = [Long(*KINDS[kind], admitted=BORN + timedelta(seconds=n)) for n, kind in enumerate(order)]
    arrivals, at = [], 1800.0
    for _ in range(ARRIVALS):
        at += chance.expovariate(1 / 3000)
        arrivals.append((at, at + chance.uniform(300, 900)))
    urgent: list[float] = []
    now, seconds = BORN, 0.0
    while arrivals or urgent:
        now += timedelta(seconds=TICK)
        seconds = (now - BORN).total_seconds()
        urgent = [end for end in urgent if end > seconds]
        for run in runs:  # the oldest first: all have the same priority while they wait
            if run.admitted is None and len(urgent) + len(running(runs)) < PLACES:
                run.admit(now)
        while arrivals and arrivals[0][0] <= seconds and len(urgent) < PLACES:
            if len(urgent) + len(running(runs)) == PLACES:
                victim(runs, now).evict(now)
            urgent.append(arrivals.pop(0)[1])
        for run in runs:
            run.look(now, boosted)
    return runs, seconds


def running(runs: list[Long]) -> list[Long]:
    return [run for run in runs if run.admitted is not None]


def victim(runs: list[Long], now: datetime) -> Long:
    """Kueue's: the lowest priority, boost included, then the last admitted (pkg/scheduler/preemption/common/ordering.go)."""
    return min(running(runs), key=lambda run: (run.boost or 0, now - (run.admitted or now)))


def test_half_as_much_is_lost_with_boosts_and_no_run_starves() -> None:
    lost, shares, checked = {True: 0, False: 0}, {True: 1.0, False: 1.0}, 0
    # Without boosts the run that was admitted last is the victim for ever: each of them once, none by luck.
    for seed, order in enumerate(permutations(KINDS)):
        for boosted in (True, False):
            runs, seconds = simulate(order, seed, boosted)
            lost[boosted] += sum(sum(run.lost) for run in runs)
            for run in runs:
                if len(run.measured) == len(run.lost):
                    assert sum(run.measured) == pytest.approx(sum(run.lost), abs=2 * TICK * len(run.lost))
                    checked += 1
            shares[boosted] = min(shares[boosted], *(run.trained / seconds for run in runs))
    assert lost[True] <= lost[False] / 2, lost
    assert shares[False] < 0.5 < 0.75 < shares[True], shares
    assert checked >= 2 * 6, checked
