"""The priority boost of a run: what it must never change, and when it is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_api.progress import MOST_EVICTIONS, Attempt, CheckpointStatus, Eviction, RunStatus
from rl_operator.decide.boost import MOST, PAUSE, ceiling, loss, taken_of_late, unused, wanted
from rl_operator.model.workload import Boosts, Fact, Workload

NOW = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)
ON = Boosts(gate=True, levels=(0, 1000), manager="us")
RUNS = Workload("run", admitted=True, reserved=True)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def trained(seconds: float, restart: float = 100, evictions: tuple[Eviction, ...] = ()) -> RunStatus:
    """A run that has trained for so long since its checkpoint."""
    attempt = Attempt(number=1, start_time=ago(50_000 + restart), trained_time=ago(50_000))
    saved = CheckpointStatus(step=3, uri="/c", time=ago(seconds))
    return RunStatus(attempts=[attempt], checkpoint=saved, evictions=list(evictions))


def evicted(before: float, away: float = 600) -> Eviction:
    """An eviction so long ago, by which the run was kept from training for so long."""
    back = {"resumed_time": ago(before), "resumed_step": 3, "lost_seconds": away}
    return Eviction(attempt=1, reason="Preempted", step=3, time=ago(before), **back)


def level(seconds: float, accelerators: int = 8, **changes: Any) -> int:
    return wanted(replace(RUNS, **changes), ON, trained(seconds), accelerators, NOW) or 0


def test_who_loses_more_has_the_higher_boost() -> None:
    levels = [level(seconds) for seconds in (0, 300, 1000, 5000, 20_000)]
    assert levels == sorted(set(levels)) and levels[0] > 0 and levels[-1] < MOST
    assert level(300, 8) < level(300, 16) < level(300, 64)
    # Twice the loss is two levels.
    assert level(2 * 1000 + 100) - level(1000) == 2


def test_the_same_seconds_on_all_accelerators_of_a_large_cluster_are_on_the_scale() -> None:
    assert level(1800, 16_000) < level(3600, 16_000) < MOST


@pytest.mark.parametrize(
    "changes",
    [
        {"admitted": False, "reserved": False},
        {"admitted": False},
        {"evicted": Fact("Preempted")},
        {"finished": Fact("Succeeded")},
        {"deleting": True},
    ],
)
def test_a_run_that_is_not_running_has_none(changes: dict[str, Any]) -> None:
    away = replace(RUNS, **changes)
    assert wanted(away, ON, trained(9000), 8, NOW) is None
    just = replace(away, boost=30, boost_writers={"us": NOW})
    for boosts in (ON, Boosts(manager="us"), replace(ON, gate=False)):
        assert wanted(just, boosts, trained(9000), 8, NOW) == 0, "at once, whatever is known of the gate"


def test_it_is_never_below_zero_so_that_nobody_of_its_class_may_evict_it() -> None:
    least = [wanted(replace(RUNS, boost=one), ON, trained(0, 0), 1, NOW) for one in (1, 30, 99)]
    assert least == [0, 0, 0]
    assert wanted(replace(RUNS, boost=-5), ON, trained(0, 0), 1, NOW) == 0


@pytest.mark.parametrize(
    ("priority", "levels", "most"),
    [
        (0, (), MOST),
        (0, (0, 100, 1000), 99),
        (100, (0, 100, 1000), MOST),
        (0, (0, 10, 1000), 9),
        (5, (0, 5, 6), 0),
    ],
)
def test_it_stays_below_the_next_higher_class(priority: int, levels: tuple[int, ...], most: int) -> None:
    assert ceiling(priority, levels) == most
    boosts = replace(ON, levels=levels)
    for seconds in (0, 1000, 10**6, 10**9):
        value = wanted(replace(RUNS, priority=priority), boosts, trained(seconds), 10_000, NOW) or 0
        assert 0 <= value <= most
        assert all(priority + value < one for one in levels if one > priority)


def test_a_boost_that_a_new_class_makes_too_high_is_lowered() -> None:
    high = replace(RUNS, boost=40, boost_writers={"us": ago(61)})
    assert wanted(high, replace(ON, levels=(0, 20)), trained(0), 8, NOW) in range(20)


def test_a_little_more_is_not_written() -> None:
    first = level(1000)
    known = replace(RUNS, boost=first, boost_writers={"us": ago(600)})
    assert wanted(known, ON, trained(1100), 8, NOW) is None
    assert wanted(known, ON, trained(2500), 8, NOW) == level(2500) > first
    assert wanted(known, ON, trained(0), 8, NOW) == level(0) < first


def test_there_is_at_most_one_write_in_a_minute() -> None:
    known = replace(RUNS, boost=5, boost_writers={"us": NOW - PAUSE + timedelta(seconds=1)})
    assert wanted(known, ON, trained(9000), 8, NOW) is None
    assert wanted(replace(known, boost_writers={"us": NOW - PAUSE}), ON, trained(9000), 8, NOW) is not None


def test_one_that_has_come_back_has_its_boost_at_once() -> None:
    back = replace(RUNS, boost=0, boost_writers={"us": NOW - timedelta(seconds=5)})
    assert wanted(back, ON, trained(9000), 8, NOW) == level(9000)


def test_nothing_is_written_where_it_is_not_known_what_it_would_do() -> None:
    assert wanted(RUNS, replace(ON, gate=None), trained(9000), 8, NOW) is None
    assert wanted(RUNS, ON, trained(9000), None, NOW) is None


def test_a_second_writer_has_it_alone() -> None:
    theirs = replace(RUNS, boost=-10, boost_writers={"kueue-priority-booster": ago(5), "us": ago(90)})
    for workload in (theirs, replace(theirs, evicted=Fact("Preempted"))):
        assert wanted(workload, ON, trained(9000), 8, NOW) is None
    word, sentence = unused(theirs, ON)
    assert word == "OtherWriter" and "kueue-priority-booster" in sentence
    assert unused(replace(theirs, boost_writers={"us": NOW}), ON) == (None, "")


def test_a_gate_that_is_off_is_said() -> None:
    off = replace(ON, gate=False)
    assert wanted(RUNS, off, trained(9000), 8, NOW) is None
    word, sentence = unused(RUNS, off)
    assert word == "GateOff" and "PriorityBoost" in sentence


def test_time_that_evictions_took_counts_the_less_the_longer_ago_it_is() -> None:
    shares = [
        taken_of_late(trained(0, evictions=(evicted(before),)), NOW) for before in (600, 3600, 7200, 90_000)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] == pytest.approx(shares[2] * 2) and shares[3] < 1e-6
    # One that waits since an hour has had half of its time of late.
    waits = Eviction(attempt=1, reason="Preempted", time=ago(3600), step=3)
    assert taken_of_late(trained(0, evictions=(waits,)), NOW) == pytest.approx(0.5)


def test_a_run_of_a_thousandth_is_spared_when_it_has_a_tenth_of_its_time() -> None:
    def small(away: float) -> float:
        often = [evicted(before, away) for before in range(200 * MOST_EVICTIONS, 0, -200)]
        return loss(trained(0, evictions=tuple(often)), 1, NOW)

    large = loss(trained(0), 1000, NOW)
    assert small(0) == pytest.approx(large / 1000)
    assert small(150) < large < small(190)
