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
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rl_api.progress import QueueStatus, RunStatus
from rl_operator.decide.eviction_cost import measured, predicted_seconds
from rl_operator.model.decision import Note

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
"""Between two writes for a run that goes on."""


@dataclass(frozen=True)
class Known:
    """What is known of a run's Workload, and of the queues around it."""

    runs: bool
    """Whether it is admitted and not evicted."""
    boost: int | None = None
    """What is written now; None: nothing is."""
    written: datetime | None = None
    """When we wrote last; None: we did not."""
    others: tuple[str, ...] = ()
    """Others than us that wrote what is there."""
    gate: bool | None = None
    """Whether Kueue minds boosts; None: not known."""
    priority: int = 0
    """Without the boost."""
    priorities: tuple[int, ...] = ()
    """Of all classes; of what is borrowed up to a priority, the one above it."""


def wanted(known: Known, status: RunStatus, accelerators: int, now: datetime) -> int | None:
    """The boost to be written now; None: what is there is left alone.

    What a run loses is shown on a scale of `LEVELS` for each doubling, from 0 to as much as is allowed. A new value is
    written when it differs by `STEP` and the last write is `PAUSE` ago; the end of a boost, for a run that is evicted or
    waits, is written at once: its quota is not given back before.
    """
    if known.others:
        return None
    if not known.runs or known.gate is False:
        return 0 if known.boost else None
    if known.gate is None:
        return None
    most = ceiling(known.priority, known.priorities)
    level = LEVELS * math.log2(1 + loss(status, accelerators, now)) * most / MOST
    level, before = min(level, float(most)), known.boost or 0
    if 0 <= before <= most and abs(level - before) < STEP:
        return None
    recent = known.written is not None and now - known.written < PAUSE
    return None if recent else round(level)


def loss(status: RunStatus, accelerators: int, now: datetime) -> float:
    """What an eviction would lose now, in accelerator seconds, and more for a run that was evicted of late.

    Seconds of training that it would cost (`predicted_seconds`), times the accelerators that would do it again (pods, where
    a run has none), over the cube of the share of its time that evictions have left it of late. Without the last the
    smallest run, or the one that has just come back, would lose least again and again, and never train.
    """
    return predicted_seconds(status, now) * accelerators / (1 - taken_of_late(status, now)) ** SPARING


def taken_of_late(status: RunStatus, now: datetime) -> float:
    """Share of a run's time that evictions took: it waited for quota, started again, and did work again. Under 1."""
    taken = 0.0
    for one in status.evictions:
        if one.time is None:
            continue
        lost = measured(one, status, now)
        end = one.resumed_time + timedelta(seconds=lost) if one.resumed_time and lost is not None else now
        taken += _weight(now - end) - _weight(now - one.time)
    return min(max(taken, 0.0), 0.999)


def _weight(age: timedelta) -> float:
    """What all time before this age weighs, in all time; the older the less."""
    return 2.0 ** (-age / HALF_LIFE)


def ceiling(priority: int, priorities: Iterable[int]) -> int:
    """The largest boost by which a run stays below all that are above it."""
    return min(MOST, min((one - priority for one in priorities if one > priority), default=MOST + 1) - 1)


def shown(queue: QueueStatus, known: Known, written: int | None) -> tuple[QueueStatus, tuple[Note, ...]]:
    """The run's place with the boost as it is after `written`, and an event when it turns out that there will be none."""
    boost = known.boost if written is None else written
    off = queue.boost_off
    if known.others:
        off = "OtherWriter"
    elif known.gate is not None:
        off = None if known.gate else "GateOff"
    said = queue.model_copy(update={"boost": boost or None, "boost_off": off})
    if off is None or off == queue.boost_off:
        return said, ()
    if off == "OtherWriter":
        return said, (Note("Warning", "PriorityBoostTaken", _taken(known)),)
    return said, (Note("Normal", "PriorityBoostOff", _GATE_OFF),)


_GATE_OFF: Final = (
    "Kueue does not mind what an eviction would cost this run: its feature gate PriorityBoost is off, or older than 0.17"
)


def _taken(known: Known) -> str:
    by = ", ".join(known.others)
    return (
        f"{by} writes {'priority-boost'} of this run's Workload as well ({known.boost}): the operator leaves it to them; "
        "there should be one writer in a cluster"
    )
