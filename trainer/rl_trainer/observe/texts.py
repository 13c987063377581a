"""Numbers and results as a person reads them, on the console and on the report page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Why a run has ended; a reason that is not here is shown as it is.
_STOP_REASONS = {
    "targetReward": "Target reached",
    "maxSteps": "All steps done",
    "maxDuration": "Time limit reached",
    "programEnded": "The program is done",
}


class Tile(NamedTuple):
    """One result at the top of the page; `change` goes from `start` to `value`, and `trend` says up or down."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    start: str = ""
    change: str = ""
    trend: str = ""


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for people: thousands grouped, `digits` decimals below 100, an en dash for nothing."""
    if value is None or not math.isfinite(value):
        return "\u2013"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}".replace("-", "\u2212")
    return f"{value:.{digits}f}".replace("-", "\u2212")


def duration(seconds: float | None) -> str:
    """Return seconds as `42 s`, `7 min 05 s` or `3 h 20 min`."""
    if seconds is None or not math.isfinite(seconds):
        return "\u2013"
    whole = round(seconds)
    if whole < 10:
        return f"{seconds:.1f}\u2009s"
    if whole < 60:
        return f"{whole}\u2009s"
    if whole < 3600:
        return f"{whole // 60}\u2009min {whole % 60:02d}\u2009s"
    return f"{whole // 3600}\u2009h {whole % 3600 // 60:02d}\u2009min"


def short_duration(seconds: float | None) -> str:
    """As `duration`, but with three digits of less than ten seconds: parts of short steps are told apart."""
    if seconds is None or not math.isfinite(seconds) or seconds >= 9.995:
        return duration(seconds)
    return f"{seconds:.3g}\u2009s"


def words(name: str) -> str:
    """Return `rewardError` or `reward_error` as `reward error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ").lower()


def ended(reason: str) -> str:
    """Return why a run has ended, as the begin of a sentence."""
    return _STOP_REASONS.get(reason, f"{reason[:1].upper()}{reason[1:]}")


def what_was_trained(run: Any, seed: int | None) -> str:
    """Return one line about model, task, algorithm and actors, from what the run's YAML holds."""
    spec = _mapping(_mapping(run).get("spec"))
    model, task, algorithm = (_mapping(spec.get(key)) for key in ("model", "task", "algorithm"))
    parts = [
        str(model.get("source") or ""),
        " ".join(str(task[key]) for key in ("environment", "name", "file") if task.get(key)),
    ]
    if algorithm:
        name = str(algorithm.get("name", "grpo"))
        name = name if ":" in name else name.upper().replace("_", " ")
        prompts, group = algorithm.get("promptsPerStep"), algorithm.get("groupSize")
        parts.append(f"{name}, {prompts} prompts \u00d7 {group} answers" if prompts and group else name)
    actors = [
        f"{count} {role}{'s' if count != 1 else ''}"
        for role in ("sampler", "learner")
        if (count := _mapping(spec.get(role)).get("replicas"))
    ]
    staleness = _mapping(spec.get("buffer")).get("maxStaleness")
    mode = [] if staleness is None else ["synchronous" if staleness == 0 else f"staleness up to {staleness}"]
    parts += [", ".join(actors), *_placement(spec), *mode, f"seed {seed}" if seed is not None else ""]
    return " \u00b7 ".join(part for part in parts if part)


def _placement(spec: Mapping[str, Any]) -> list[str]:
    """Who shares devices, and in what pieces a step passes, where it is not that each has its own and the step is one."""
    placement = _mapping(spec.get("placement"))
    mode, shared, part = (placement.get(name) for name in ("mode", "sharedSamplers", "partGroups"))
    found = []
    if mode == "collocated":
        found.append("collocated")
    elif mode != "disaggregated" and isinstance(shared, int) and shared > 0:
        found.append(f"{shared} on learners' devices")
    elif mode == "hybrid":
        found.append("hybrid")
    if isinstance(part, int):
        found.append(f"parts of {part} group{'s' if part != 1 else ''}")
    return found


def tiles(summary: Mapping[str, Any], max_steps: int | None) -> list[Tile]:
    """Return the row of results at the top of the page, from what `summarize` returns."""
    dropped, stale = sum(summary["groups_dropped"].values()), summary["max_staleness_seen"]
    resumed, skipped = summary["resumed_from"], summary["skipped_steps"]
    step_notes = [f"resumed from step {resumed}"] if resumed is not None else []
    step_notes += [f"{skipped} skipped, loss not a number"] if skipped else []
    age = f"at most {number(stale)} version{'s' * (stale != 1)} old" if stale else "always on-policy"
    seconds, steps = summary["wall_seconds"], len(summary["reward_curve"])
    tokens, samples = summary["completion_tokens_per_second"], summary["samples_per_second"]
    return [
        _outcome(summary),
        Tile("Steps", f"{summary['steps']:,}", f"of {max_steps:,}" if max_steps else "", "; ".join(step_notes)),
        Tile("Time", duration(seconds), "", f"{duration(seconds / steps)} per step" if steps else ""),
        Tile("Speed", number(tokens, 1), "tokens/s", f"{number(samples, 1)} answers/s"),
        Tile("Groups trained", f"{summary['groups_trained']:,}", "",
             f"{f'{dropped:,}' if dropped else 'none'} dropped; {age}"),
        Tile("Completion tokens", _compact(summary["completion_tokens"]), "",
             f"{number(tokens / samples, 1)} per answer" if samples else ""),
    ]  # fmt: skip


def _outcome(summary: Mapping[str, Any]) -> Tile:
    curve = [score for _, score in summary["heldout_curve"]]
    label, best = "Held-out score", summary["best_heldout"]
    if not curve:
        label, best = "Reward, first to last step", None
        curve = [value for value in summary["reward_curve"] if value is not None]
    if not curve:
        return Tile(label, "\u2013", note="nothing measured yet")
    if len(curve) == 1:
        return Tile(label, score(curve[0]), note="measured once")
    start, end = curve[0], curve[-1]
    change = round(end - start, 2)
    trend, sign = ("up", "+") if change > 0 else ("down", "") if change < 0 else ("", "\u00b1")
    beaten = best is not None and best > end
    note = f", best {score(best)} at step {summary['best_heldout_step']}" if beaten else ""
    return Tile(label, score(end), "", note, score(start), f"{sign}{score(change)}", trend)


def score(value: float) -> str:
    """Return a score or a reward."""
    return f"{value:.2f}".replace("-", "\u2212")


def _compact(value: float) -> str:
    for size, unit, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if value >= least:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"


def warm_start_line(events: Sequence[Mapping[str, Any]]) -> str:
    """Return what is said of the supervised warm start, from its metrics events; empty when there were none."""
    if not events:
        return ""
    last, steps = events[-1], events[-1].get("warm_start_step")
    best = next((event["score"] for event in reversed(events) if event.get("score") is not None), None)
    seconds = last["time"] - events[0]["time"]
    parts = [f"{steps:,} supervised steps" if isinstance(steps, int) else "a supervised start"]
    parts += [f"to a sampled score of {score(best)}"] if best is not None else []
    parts += [f"in {duration(seconds)}"] if seconds > 0 else []
    return " ".join(parts)


def yaml_lines(text: str) -> list[tuple[str, str, str]]:
    """Return lines of YAML as (indent, key, rest), so that keys can be coloured."""
    return re.findall(r"^(?:(\s*(?:- )*)([\w.$-]+)(?=:(?:\s|$)))?(.*)$", text.rstrip(), re.MULTILINE)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
