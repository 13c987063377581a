"""What an eviction of a run would cost now, and what one did cost: in seconds of training of the run. Pure.

Two things are lost: work since the last checkpoint, which is done again, and the restart, in which the run has its pods
again and does not train yet. Time for which it waits for quota is not training, and counts as waiting.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rl_api.progress import Attempt, Eviction, RunStatus

UNKNOWN_RESTART: Final = 120.0
"""Seconds that the restart of a run is taken to last that has not trained yet: pods, images and model have to come."""


def predicted_seconds(status: RunStatus, now: datetime) -> float:
    """Seconds of training that an eviction which is not in this status would cost now, before it is known whether a
    checkpoint comes in time.

    The work since the last checkpoint counts by the share of this run's evictions that lost it, one such being assumed
    before the first: the whole of it at first, less with every checkpoint that came within the grace period.
    """
    return share_lost(status) * unsaved_seconds(status, now) + restart_seconds(status)


def measured(eviction: Eviction, status: RunStatus, now: datetime) -> float | None:
    """Seconds of training that an eviction in this status did cost: from when the run had pods again to when it trains at
    the step that it had. None: it is not there yet.

    One that is evicted again before that, or whose attempt ends, has lost all that it did since.
    """
    if eviction.lost_seconds is not None or eviction.resumed_time is None:
        return eviction.lost_seconds
    return _seconds(eviction.resumed_time, _recovered(eviction, status, now))


def with_costs(status: RunStatus, now: datetime) -> list[Eviction]:
    """The evictions, each with what it did cost, once that is known."""
    return [
        one.model_copy(update={"lost_seconds": cost})
        if one.lost_seconds is None and (cost := measured(one, status, now)) is not None
        else one
        for one in status.evictions
    ]


def unsaved_seconds(status: RunStatus, now: datetime) -> float:
    """Seconds of training since the last checkpoint, with the pods that the run has."""
    attempt = _open(status)
    since = _trains_since(attempt, status) if attempt is not None else None
    if since is None:
        return 0.0
    saved = status.checkpoint.time if status.checkpoint is not None else None
    return _seconds(max(since, saved or since), now) or 0.0


def restart_seconds(status: RunStatus) -> float:
    """Seconds from when the run had its pods to when it trained, as it was the last time."""
    for attempt in reversed(status.attempts):
        trained = attempt.trained_time
        begun = [time for time in _begins(attempt, status) if trained is not None and time <= trained]
        if begun:
            return _seconds(max(begun), trained) or 0.0
    return UNKNOWN_RESTART


def share_lost(status: RunStatus) -> float:
    """Share of evictions that lost the work since the last checkpoint, one more than is known."""
    known = [
        one.resumed_step < one.step
        for one in status.evictions
        if one.step is not None and one.resumed_step is not None
    ]
    return (1 + sum(known)) / (1 + len(known))


def trains(attempt: Attempt, status: RunStatus, said: datetime) -> bool:
    """Whether that a driver trained at the time `said` is the first that is known of it with the attempt's present pods."""
    if _is_evicted(attempt, status) or _trains_since(attempt, status) is not None:
        return False
    return all(said > time for time in _begins(attempt, status))


def _recovered(eviction: Eviction, status: RunStatus, now: datetime) -> datetime | None:
    """When the run was where it had been; None: it is not."""
    place = status.evictions.index(eviction)
    later = status.evictions[place + 1 :]
    if later:
        return later[0].time
    attempt = next((one for one in status.attempts if one.number == eviction.attempt), None)
    if attempt is None or attempt.end_time is not None:
        return attempt.end_time if attempt is not None else None
    since = _trains_since(attempt, status)
    if since is None:
        return None
    # What one before had not made up for when this one came is to be made up for now.
    before = [one for one in status.evictions[: place + 1] if one.attempt == eviction.attempt]
    had = max(one.step or 0 for one in before)
    if (eviction.resumed_step or 0) >= had:
        return since
    return now if status.progress is not None and status.progress.step >= had else None


def _open(status: RunStatus) -> Attempt | None:
    newest = status.attempts[-1:]
    return newest[0] if newest and newest[0].end_time is None else None


def _begins(attempt: Attempt, status: RunStatus) -> list[datetime]:
    """When pods of an attempt were asked for: at first, and after each eviction."""
    resumed = [one.resumed_time for one in status.evictions if one.attempt == attempt.number]
    return [time for time in (attempt.start_time, *resumed) if time is not None]


def _trains_since(attempt: Attempt, status: RunStatus) -> datetime | None:
    """When an attempt began to train with the pods that it has; None: it does not yet."""
    trained = attempt.trained_time
    if trained is None or _is_evicted(attempt, status):
        return None
    return trained if all(time <= trained for time in _begins(attempt, status)) else None


def _is_evicted(attempt: Attempt, status: RunStatus) -> bool:
    """Whether the pods of an attempt were taken away, and are not asked for again."""
    evicted = [one for one in status.evictions if one.attempt == attempt.number]
    return bool(evicted) and evicted[-1].resumed_time is None


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return max((end - start).total_seconds(), 0.0) if end is not None else None
