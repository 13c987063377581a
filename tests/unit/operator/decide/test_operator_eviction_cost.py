"""What an eviction is expected to cost a run, and what it did cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_api.progress import Attempt, CheckpointStatus, Eviction, Progress, RunStatus
from rl_operator.decide.eviction_cost import (
    UNKNOWN_RESTART,
    measured,
    predicted_seconds,
    restart_seconds,
    share_lost,
    trains,
    unsaved_seconds,
    with_costs,
)

BORN = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BORN + timedelta(seconds=seconds)


def attempt(number: int = 1, start: float = 0, trained: float | None = None, **fields: Any) -> Attempt:
    when = at(trained) if trained is not None else None
    return Attempt(number=number, start_time=at(start), trained_time=when, **fields)


def saved(step: int, seconds: float) -> CheckpointStatus:
    return CheckpointStatus(step=step, uri="/c", time=at(seconds))


def evicted(time: float, step: int | None = 10, resumed: float | None = None, **fields: Any) -> Eviction:
    when = at(resumed) if resumed is not None else None
    return Eviction(attempt=1, reason="Preempted", time=at(time), step=step, resumed_time=when, **fields)


def test_a_run_that_never_trained_has_nothing_unsaved_and_a_restart_as_others_have() -> None:
    status = RunStatus(attempts=[attempt()])
    assert (unsaved_seconds(status, at(500)), restart_seconds(status)) == (0.0, UNKNOWN_RESTART)
    assert predicted_seconds(status, at(500)) == UNKNOWN_RESTART
    assert predicted_seconds(RunStatus(), at(500)) == UNKNOWN_RESTART


def test_work_counts_from_when_it_trained_or_from_the_checkpoint() -> None:
    status = RunStatus(attempts=[attempt(trained=90)])
    assert (unsaved_seconds(status, at(690)), restart_seconds(status)) == (600.0, 90.0)
    assert predicted_seconds(status, at(690)) == 690.0
    status.checkpoint = saved(5, 490)
    assert unsaved_seconds(status, at(690)) == 200.0
    # Of the attempt before: what was trained since is not in it.
    status.checkpoint = saved(5, -500)
    assert unsaved_seconds(status, at(690)) == 600.0


def test_an_attempt_that_ended_or_was_evicted_has_nothing_more_to_lose() -> None:
    ended = RunStatus(attempts=[attempt(trained=90, end_time=at(200))])
    away = RunStatus(attempts=[attempt(trained=90)], evictions=[evicted(200)])
    loading = RunStatus(attempts=[attempt(trained=90)], evictions=[evicted(200, resumed=300)])
    assert [unsaved_seconds(one, at(400)) for one in (ended, away, loading)] == [0.0, 0.0, 0.0]


def test_the_restart_is_the_last_that_was_measured() -> None:
    first, second = attempt(1, 0, 90, end_time=at(200)), attempt(2, 300)
    assert restart_seconds(RunStatus(attempts=[first, second])) == 90.0
    again = RunStatus(attempts=[attempt(trained=350)], evictions=[evicted(200, resumed=300)])
    assert restart_seconds(again) == 50.0
    # Not yet trained since: as it was before.
    waits = RunStatus(attempts=[attempt(trained=90)], evictions=[evicted(200, resumed=300)])
    assert restart_seconds(waits) == 90.0


def test_checkpoints_that_came_in_time_make_less_of_the_work_count() -> None:
    kept, lost = evicted(1, 10, 2, resumed_step=10), evicted(1, 10, 2, resumed_step=4)
    unknown = evicted(1, 10)
    shares = [share_lost(RunStatus(evictions=one)) for one in ([], [kept], [kept, kept], [lost], [unknown])]
    assert shares == [1.0, 1 / 2, 1 / 3, 1.0, 1.0]
    status = RunStatus(attempts=[attempt(trained=90)], evictions=[evicted(100, 10, 120, resumed_step=10)])
    status.attempts[0].trained_time = at(150)
    assert predicted_seconds(status, at(250)) == pytest.approx(100 / 2 + 30)


def test_a_run_trains_once_a_driver_has_said_so_since_its_pods_were_asked_for() -> None:
    fresh = RunStatus(attempts=[attempt(start=100)])
    assert not trains(fresh.attempts[0], fresh, at(100))
    assert trains(fresh.attempts[0], fresh, at(101))
    known = RunStatus(attempts=[attempt(trained=150)])
    assert not trains(known.attempts[0], known, at(200))
    away = RunStatus(attempts=[attempt(trained=150)], evictions=[evicted(200)])
    assert not trains(away.attempts[0], away, at(210)), "its driver trains until it is stopped"
    back = RunStatus(attempts=[attempt(trained=150)], evictions=[evicted(200, resumed=300)])
    assert not trains(back.attempts[0], back, at(290)), "said by the driver before"
    assert trains(back.attempts[0], back, at(310))


def test_an_eviction_cost_the_restart_where_the_checkpoint_had_all_steps() -> None:
    eviction = evicted(200, 10, 300, resumed_step=10)
    status = RunStatus(attempts=[attempt(trained=90)], evictions=[eviction], progress=Progress(step=10))
    assert measured(eviction, status, at(330)) is None, "it does not train yet"
    status.attempts[0].trained_time = at(340)
    assert measured(eviction, status, at(400)) == 40.0
    assert with_costs(status, at(400))[0].lost_seconds == 40.0


def test_an_eviction_cost_the_restart_and_the_steps_that_were_done_again() -> None:
    eviction = evicted(200, 10, 300, resumed_step=4)
    status = RunStatus(attempts=[attempt(trained=340)], evictions=[eviction], progress=Progress(step=9))
    assert measured(eviction, status, at(400)) is None
    assert with_costs(status, at(400)) == [eviction]
    status.progress = Progress(step=10)
    assert measured(eviction, status, at(420)) == 120.0
    # It stays what it was when it was known.
    known = eviction.model_copy(update={"lost_seconds": 120.0})
    assert measured(known, status.model_copy(update={"evictions": [known]}), at(999)) == 120.0


def test_evicted_again_before_it_was_there_the_rest_is_made_up_for_by_the_next() -> None:
    first, second = evicted(200, 10, 300, resumed_step=4), evicted(400, 7, 500, resumed_step=6)
    status = RunStatus(attempts=[attempt(trained=540)], evictions=[first, second])
    assert measured(first, status, at(600)) == 100.0
    status.progress = Progress(step=9)
    assert measured(second, status, at(600)) is None
    status.progress = Progress(step=10)
    assert measured(second, status, at(660)) == 160.0


def test_an_attempt_that_ends_before_it_is_there_has_lost_what_it_did() -> None:
    eviction = evicted(200, 10, 300, resumed_step=4)
    status = RunStatus(attempts=[attempt(trained=340, end_time=at(380))], evictions=[eviction])
    assert measured(eviction, status, at(400)) == 80.0
    assert measured(eviction, RunStatus(evictions=[eviction]), at(400)) is None, (
        "nothing is known of the attempt"
    )
    assert measured(evicted(200), status.model_copy(update={"evictions": [evicted(200)]}), at(400)) is None
