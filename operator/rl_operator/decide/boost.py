"""The priority boost of a run's Workload, by which Kueue evicts the run that loses least. Pure.

Kueue adds the annotation `kueue.x-k8s.io/priority-boost` to the priority everywhere: to order its queues, to say who may
preempt whom, and to order those that may be preempted, the lowest first (Kueue: pkg/util/priority, pkg/cache/queue,
pkg/scheduler/preemption/common). Only the last is wanted here, so a boost must change nothing in the first two:

- A run that waits has none. With one it would overtake others of its class, and evict those of them that run.
- One that runs has none below zero. With one, whoever waits in its class would be above it and evict it: exactly the runs
  that are cheap would be exchanged for each other for ever. None at or above zero lets equals evict equals.
- It is less than the distance to the next higher class, so that whoever could evict the run still can, and a run of a
  lower class goes before it still.

Where Kueue evicts newer runs of the same priority too (`LowerOrNewerEqualPriority`), runs with a boost are not the same
any more, and are spared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

from rl_api.progress import MOST_EVICTIONS, RunStatus
from rl_operator.decide.eviction_cost import measured, predicted_seconds, with_costs
from rl_operator.decide.look import Look
from rl_operator.model.decision import Boost, Decision, Note
from rl_operator.model.workload import BOOST_ANNOTATION, Boosts, Workload

MOST: Final = 99
"""The largest boost: classes of priority are usually 100 apart or more."""

LEVELS: Final = 2.0
"""Levels for each doubling of what is lost: the loss of runs spans eight orders of magnitude, the boost two."""

SPARING: Final = 3.0
"""Power of the share of its time that a run had of late, by which what it loses is divided, see `loss`."""

HALF_LIFE: Final = timedelta(hours=1)
"""Of late: time that is so long ago counts half."""

STEP: Final = 1.0
"""Levels by which what is wanted must differ from what is written: a factor of 1.4 in what is lost."""

PAUSE: Final = timedelta(minutes=1)
"""Between two writes for a run that goes on and has a boost."""


def boosting(look: Look, decision: Decision) -> Decision:
    """With the boost that the run's Workload is to have after this decision, and with what evictions did cost."""
    evictions = with_costs(decision.status, look.now)
    status = decision.status.model_copy(update={"evictions": evictions})
    main, queue, boosts = look.world.workload, status.queue, look.world.boosts
    if main is None or queue is None or status.phase in ("Succeeded", "Failed"):
        return replace(decision, status=status)
    value = wanted(main, boosts, status, _accelerators(look), look.now)
    before = look.old.queue.boost_off if look.old.queue is not None else None
    off, sentence = unused(main, boosts) if main.runs and boosts.gate is not None else (before, "")
    written = main.boost if value is None else value
    shown = queue.model_copy(update={"boost": written or None, "boost_off": off})
    notes = decision.notes
    if off is not None and off != before:
        notes = (*notes, Note("Normal" if off == "GateOff" else "Warning", f"Boost{off}", sentence))
    return replace(
        decision,
        status=status.model_copy(update={"queue": shown}),
        boost=Boost(main.name, main.uid, value) if value is not None else None,
        notes=notes,
    )


def wanted(
    workload: Workload, boosts: Boosts, status: RunStatus, accelerators: int | None, now: datetime
) -> int | None:
    """The boost to be written now; None: what is there is left alone. `accelerators`: None where they are not known now.

    What a run loses is shown on a scale of `LEVELS` for each doubling, from 0 to as much as is allowed. A new value is
    written when it differs by `STEP` and the last write is `PAUSE` ago; the end of a boost, for a run that is evicted or
    waits, is written at once: its quota is not given back before.
    """
    before = workload.boost or 0
    if _others(workload, boosts):
        return None
    if not workload.runs or boosts.gate is False:
        return 0 if before else None
    if boosts.gate is None or accelerators is None:
        return None
    most = ceiling(workload.priority, boosts.levels)
    level = min(LEVELS * math.log2(1 + loss(status, accelerators, now)) * most / MOST, float(most))
    if 0 <= before <= most and abs(level - before) < STEP:
        return None
    # One that was taken away with the quota is given anew at once: who has just come back would be the first to go again.
    written = workload.boost_writers.get(boosts.manager) if before else None
    return None if written is not None and now - written < PAUSE else round(level)


def loss(status: RunStatus, accelerators: int, now: datetime) -> float:
    """What an eviction would lose now, in accelerator seconds, and more for a run that was evicted of late.

    Seconds of training that it would cost (`predicted_seconds`), times the accelerators that would do it again (pods, where
    a run has none), over the cube of the share of its time that evictions have left it of late. Without the last the
    smallest run, or the one that has just come back, would lose least again and again, and never train. With it one whose
    eviction costs a thousandth of any other's still has a tenth of its time, and one of an eighth has half.
    """
    left = math.pow(1 - taken_of_late(status, now), SPARING)
    return predicted_seconds(status, now) * accelerators / left


def taken_of_late(status: RunStatus, now: datetime) -> float:
    """Share of a run's time that evictions took: it waited for quota, started again, and did work again. Under 1."""
    taken = 0.0
    for one in status.evictions:
        if one.time is None:
            continue
        resumed, lost = one.resumed_time, measured(one, status, now)
        end = now if resumed is None or lost is None else resumed + timedelta(seconds=lost)
        taken += _weight(now - end) - _weight(now - one.time)
    first = status.evictions[0].time if len(status.evictions) == MOST_EVICTIONS else None
    known = (
        1 - _weight(now - first) if first is not None else 1.0
    )  # of those before the first nothing is known
    return min(max(taken / known, 0.0), 0.999) if known > 0 else 0.0


def _weight(age: timedelta) -> float:
    """What all time before this age weighs, in all time; the older the less."""
    return math.exp2(-age / HALF_LIFE)


def ceiling(priority: int, priorities: Iterable[int]) -> int:
    """The largest boost by which a run stays below all that are above it."""
    return min(MOST, min((one - priority for one in priorities if one > priority), default=MOST + 1) - 1)


def unused(workload: Workload, boosts: Boosts) -> tuple[Literal["GateOff", "OtherWriter"] | None, str]:
    """Why no boost is written for a run that has its quota, in a word and a sentence; None: one is, or it is not known."""
    if others := _others(workload, boosts):
        return "OtherWriter", (
            f"{', '.join(others)} has written {BOOST_ANNOTATION} of Workload {workload.name}, and the operator writes it no "
            "more: one writer in a cluster decides whom a queue evicts"
        )
    if boosts.gate is False:
        return "GateOff", (
            "the queue evicts this run without regard to what it loses: Kueue's feature gate PriorityBoost is off, or Kueue "
            "is older than 0.17"
        )
    return None, ""


def _others(workload: Workload, boosts: Boosts) -> list[str]:
    """Who else wrote the boost that is there."""
    return sorted(set(workload.boost_writers) - {boosts.manager}) if boosts.manager else []


def _accelerators(look: Look) -> int | None:
    """Those that an eviction takes, or pods of a run that has none; None: not known now."""
    if look.effective is None:
        return None
    roles = look.effective.roles
    return sum(role.accelerators * role.at_start for role in roles) or sum(role.at_start for role in roles)
