"""What metrics show of a run: taken from its status as it is seen, so that a scrape reads no objects. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_operator.model.names import Key, Manifest
from rl_operator.model.record import NO_RECORD, Queued, Record, object_in, queued_of, record_of
from rl_operator.model.times import parse_time

MOST_SHOWN: Final = 500
"""Runs of one namespace that are shown: who makes more of them does not fill the disk of everybody's Prometheus."""

ENDED: Final = frozenset({"Succeeded", "Failed", "Interrupted"})
"""Phases of runs whose figures do not change any more."""

NUMBERS: Final = {
    "step": ("progress", "step", "Training steps done"),
    "max_steps": ("progress", "maxSteps", "Training steps at most"),
    "reward_mean": ("progress", "reward", "Mean reward of the last step"),
    "heldout_score": ("progress", "heldoutScore", "Share of exact matches in the last evaluation, 0 to 1"),
    "tokens_per_second": ("progress", "tokensPerSecond", "Completion tokens per second"),
    "total_tokens_per_second": (
        "progress",
        "totalTokensPerSecond",
        "Prompt and completion tokens per second",
    ),
    "buffer_fill_ratio": ("progress", "bufferFill", "Groups in the buffer over its capacity"),
    "staleness_mean": ("progress", "staleness", "Weight versions the last step's groups were behind"),
    "sampler_busy_ratio": (
        *("progress", "samplerBusy"),
        "Share of the time of the last steps for which samplers made what was trained on, 0 to 1",
    ),
    "learner_busy_ratio": (
        *("progress", "learnerBusy"),
        "Share of the time of the last steps for which learners trained, 0 to 1",
    ),
    "sampler_cpus": ("progress", "samplerCpus", "Processor cores in use by a sampler"),
    "learner_cpus": ("progress", "learnerCpus", "Processor cores in use by a learner"),
    "driver_cpus": ("progress", "driverCpus", "Processor cores in use by the driver"),
    "sampler_gpu_busy_ratio": (
        *("progress", "samplerGpuBusy"),
        "Share of the time for which a sampler's GPU computed, 0 to 1, as its driver counts it",
    ),
    "learner_gpu_busy_ratio": (
        *("progress", "learnerGpuBusy"),
        "Share of the time for which a learner's GPU computed, 0 to 1, as its driver counts it",
    ),
    "object_store_bytes": (
        *("progress", "objectStoreBytes"),
        "Bytes of weights and answers that the last step put into the object store",
    ),
    "between_nodes_bytes": (
        *("progress", "betweenNodesBytes"),
        "Bytes of weights and answers that went between nodes in the last step",
    ),
    "updated_timestamp_seconds": ("progress", "updatedAt", "When the figures were written"),
    "checkpoint_step": ("checkpoint", "step", "Training steps the newest checkpoint holds"),
    "checkpoint_timestamp_seconds": ("checkpoint", "time", "When the newest checkpoint was complete"),
    "unsaved_accelerator_seconds": (
        *("usage", "unsaved"),
        "Accelerator seconds trained since the newest checkpoint: lost, if the run failed now",
    ),
}
"""Figures of a run that goes on, by name of the metric: where its status has it, and what it is."""

_UNDER_WAY: Final = ("Accepted", "Admitted", "ClusterReady", "Training")
"""Conditions that hold one after another until a run trains."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run between two scrapes."""

    phase: str
    made: str = ""
    """When the run was made, as the API server says it."""
    waits: tuple[str, str] | None = None
    """The first condition that a run which is to train does not meet yet, and its reason."""
    failed: float | None = None
    """When it failed, seconds since the epoch."""
    numbers: tuple[tuple[str, float], ...] = ()
    """By names of `NUMBERS`; what is not known is left out."""
    queued: Queued | None = None
    """Where it waits in its queue; None: it does not."""
    record: Record = NO_RECORD
    """What is kept of it, also when it is over."""


def figures_of(made: str, status: Manifest) -> Figures:
    """Figures of a run, from its status as the API server holds it; what cannot be read counts as not known."""
    phase, record = str(status.get("phase") or "Pending"), record_of(status)
    if phase in ENDED or phase == "Suspended":
        failed = _since(status, "Failed") if phase == "Failed" else None
        return Figures(phase, made, failed=failed, record=record)
    numbers = []
    for name, (group, field, _) in NUMBERS.items():
        value = _number(object_in(status.get(group)).get(field))
        if value is not None:
            numbers.append((name, value))
    queued = queued_of(status, _number(object_in(status.get("queue")).get("since")))
    return Figures(phase, made, _waits(status), numbers=tuple(numbers), queued=queued, record=record)


def shown(figures: Mapping[Key, Figures]) -> dict[Key, Figures]:
    """At most `MOST_SHOWN` of each namespace: first those that go on, the oldest first, so that newer ones displace none;
    then what ended last."""
    left: dict[str, int] = {}
    found: dict[Key, Figures] = {}
    for key in sorted(figures, key=lambda key: (_turn(figures[key]), key)):
        left[key[0]] = left.get(key[0], MOST_SHOWN) - 1
        if left[key[0]] >= 0:
            found[key] = figures[key]
    return found


def _turn(one: Figures) -> tuple[bool, float, str]:
    return (one.phase in ENDED, -(one.failed or 0.0), one.made)


def _waits(status: Manifest) -> tuple[str, str] | None:
    conditions = {str(one.get("type")): one for one in _conditions(status)}
    for kind in _UNDER_WAY:
        one = conditions.get(kind)
        if one is not None and one.get("status") != "True":
            return kind, str(one.get("reason") or "")
    return None


def _since(status: Manifest, kind: str) -> float | None:
    for one in _conditions(status):
        if one.get("type") == kind and one.get("status") == "True":
            return _number(one.get("lastTransitionTime"))
    return None


def _conditions(status: Manifest) -> Iterator[Mapping[str, Any]]:
    found = status.get("conditions")
    entries: Iterable[Any] = found if isinstance(found, list) else ()
    return (one for one in entries if isinstance(one, Mapping))


def _number(value: object) -> float | None:
    """A number, or a time as seconds since the epoch; None for anything else."""
    if isinstance(value, str):
        time = parse_time(value)
        return time.timestamp() if time is not None else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
