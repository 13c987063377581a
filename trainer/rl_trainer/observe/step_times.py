"""Where the time of one step went: a pure function of the spans of all actors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rl_trainer.observe.timeline import ENVIRONMENT, JUDGE, MEASURED, Span

SWITCHES = ("onload", "offload", "wake")
"""Spans of a change of who has the devices."""

_WORK = {"sampler": ("generate", "score"), "learner": ("fetch", "train", "log probs", "values")}
COMPUTING = {"sampler": ("generate",), "learner": _WORK["learner"]}
"""By role its spans of work on a device."""
_OF_NODES = ("cpu_seconds", "wall_seconds", "memory", "gpu_busy")


def step_times(spans: Iterable[Span]) -> dict[str, float]:
    """Sums up the spans of one step; actors are told apart by name (`sampler 0`, `learner 0`, `driver`).

    Returns:
        Seconds by field of `StepRecord`: generating and scoring are means over the samplers whose groups this step trained
        on, training and what goes before it in learners is that of the slowest one, waiting for devices and moving tensors
        that of the samplers' mean and of the learners together, waiting for environments and for models that score is what
        of the driver's waits no sampler works in, and the rest is as the driver saw it.
    """
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    working: list[tuple[float, float]] = []
    waits: list[tuple[float, float]] = []
    others: dict[str, list[tuple[float, float]]] = {ENVIRONMENT: [], JUDGE: []}
    for span in spans:
        role = span.actor.split(" ")[0]
        seconds[f"{role}/{span.name}"][span.actor] += span.end - span.start
        if role == "sampler" and span.name in ("generate", "score"):
            working.append((span.start, span.end))
        elif span.name in others:
            others[span.name].append((span.start, span.end))
        elif role == "driver" and span.name == "wait":
            waits.append((span.start, span.end))

    # What is left of the driver's waits, as more and more is known of what went on.
    left = [
        sum(uncovered(start, end, known) for start, end in waits)
        for known in (working, working + others[ENVIRONMENT], working + others[ENVIRONMENT] + others[JUDGE])
    ]

    def mean(key: str) -> float:
        values = seconds[key].values()
        return sum(values) / len(values) if values else 0.0

    def slowest(*names: str) -> float:
        learners = {actor for name in names for actor in seconds[f"learner/{name}"]}
        return max(
            (sum(seconds[f"learner/{name}"][actor] for name in names) for actor in learners), default=0.0
        )

    return {
        "time_generate": mean("sampler/generate"),
        "time_score": mean("sampler/score"),
        "time_log_probs": slowest("log probs"),
        "time_values": slowest("values"),
        "time_train": slowest("fetch", "train"),
        "time_publish": mean("driver/publish"),
        "time_evaluate": mean("driver/evaluate"),
        "time_lease": mean("sampler/lease") + mean("driver/lease"),
        "time_switch": sum(mean(f"sampler/{name}") + slowest(name) for name in SWITCHES),
        "time_environment": left[0] - left[1],
        "time_judge": left[1] - left[2],
        "time_wait": left[2],
    }


def computing_seconds(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds by role in which its actors decoded, or learned, all of them together."""
    seconds = dict.fromkeys(COMPUTING, 0.0)
    for span in spans:
        role = span.actor.split(" ")[0]
        if span.name in COMPUTING.get(role, ()):
            seconds[role] += span.end - span.start
    return seconds


def rates(steps: Iterable[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, float]:
    """Operations per second of one actor of a role while it computes, by field of `StepRecord`; none of roles that did not.

    Over several steps, as groups that an engine ends together bring their sampler's seconds with the first of them, and may
    be trained on in different steps.

    `steps`: of each, by role, floating-point operations of all its actors together, and `computing_seconds`.
    """
    done: dict[str, float] = defaultdict(float)
    took: dict[str, float] = defaultdict(float)
    for operations, seconds in steps:
        for role, count in operations.items():
            done[role] += count
            took[role] += seconds.get(role, 0.0)
    return {f"{role}_flops": count / took[role] for role, count in done.items() if took[role] > 0}


def busy_seconds(spans: Iterable[Span]) -> tuple[float, float]:
    """Seconds that samplers made what a step trained on, all samplers together; and those that its learners trained, their
    mean."""
    seconds: dict[str, dict[str, float]] = {"sampler": defaultdict(float), "learner": defaultdict(float)}
    for span in spans:
        role = span.actor.split(" ")[0]
        if span.name in _WORK.get(role, ()):
            seconds[role][span.actor] += span.end - span.start
    learners = seconds["learner"].values()
    return sum(seconds["sampler"].values()), sum(learners) / len(learners) if learners else 0.0


def use(spans: Iterable[Span]) -> dict[str, float]:
    """What actors of a step took of their nodes and of the object store, by field of `StepRecord`; what nobody tells is left
    out."""
    told: dict[str, dict[str, list[float]]] = {
        role: defaultdict(list) for role in ("sampler", "learner", "driver")
    }
    for span in spans:
        role = span.actor.split(" ")[0]
        names: tuple[str, ...] = _OF_NODES if span.name == MEASURED else ()
        if span.name in ("publish", "load weights"):
            names = ("bytes",)
        for name in names:
            if role in told and name in span.args:
                told[role][name].append(float(span.args[name]))
    found = {}
    for role, numbers in told.items():
        if there := sum(numbers["wall_seconds"]):
            found[f"{role}_cpus"] = sum(numbers["cpu_seconds"]) / there
        if role != "driver" and numbers["memory"]:
            found[f"{role}_memory_bytes"] = max(numbers["memory"])
        if busy := numbers["gpu_busy"]:
            found[f"{role}_gpu_busy_ratio"] = sum(busy) / len(busy)
    if published := told["learner"]["bytes"]:
        found["weights_bytes"] = sum(published)
    if received := told["sampler"]["bytes"]:
        found["received_bytes"] = sum(received) / len(received)
    return found


def turns(spans: Iterable[Span]) -> int:
    """Turns of all members of the groups that a step trained on."""
    return sum(int(span.args.get("turns", 0)) for span in spans if span.name == MEASURED)


def uncovered(start: float, end: float, others: Sequence[tuple[float, float]]) -> float:
    """Length of the part of [start, end] that no interval of `others` covers."""
    total, position = 0.0, start
    for first, last in sorted(others):
        if last <= position:
            continue
        if first >= end:
            break
        total += max(0.0, first - position)
        position = max(position, last)
    return total + max(0.0, end - position)
