"""Pieces of the report page as HTML. Every text of a user or a model goes through `escape` exactly once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rl_trainer.observe.charts import Chart
from rl_trainer.observe.examples import Example

EXAMPLES_SHOWN = 8
# Stop reasons the driver gives, as (sentence, look of the pill); anything else is shown as it is.
_STOP_REASONS = {
    "targetReward": ("Target reached", "good"),
    "maxSteps": ("All steps done", "good"),
    "maxDuration": ("Time limit reached", ""),
    "interrupted": ("Interrupted, can be resumed", ""),
    "checkpoint": ("Stopped at a checkpoint, can be resumed", ""),
    "suspended": ("Suspended, can be resumed", ""),
    "failed": ("Failed", "bad"),
}


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


def words(name: str) -> str:
    """Return `rewardError` or `reward_error` as `reward error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ").lower()


def status_pill(stop_reason: str | None) -> str:
    """Return the pill beside the run's name: why it ended, or that it has not."""
    if stop_reason is None:
        return '<span class="pill">Not finished</span>'
    text, look = _STOP_REASONS.get(stop_reason, (words(stop_reason[:1]) + stop_reason[1:], ""))
    if look == "" and stop_reason.lower().startswith(("failed", "error")):
        look = "bad"
    return f'<span class="pill {look}">{escape(text[:1].upper() + text[1:])}</span>'


def what_was_trained(run: Mapping[str, Any], seed: int | None) -> str:
    """Return one line about model, task, algorithm and actors, from the run's YAML as a dict."""
    spec = _mapping(run.get("spec"))
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
    parts += [", ".join(actors), *mode, f"seed {seed}" if seed is not None else ""]
    return " \u00b7 ".join(escape(part) for part in parts if part)


def tiles(summary: Mapping[str, Any], max_steps: int | None) -> str:
    """Return the row of result tiles."""
    return "".join(
        f'<div class="tile"><div class="label">{label}</div><div class="value">{value}</div>'
        f'<div class="notes">{note}</div></div>'
        for label, value, note in _tiles(summary, max_steps)
    )


def _tiles(summary: Mapping[str, Any], max_steps: int | None) -> list[tuple[str, str, str]]:
    steps, dropped = summary["steps"], sum(summary["groups_dropped"].values())
    of = f" <small>of {max_steps:,}</small>" if max_steps else ""
    resumed = summary.get("resumed_from")
    skipped = summary.get("skipped_steps") or 0
    step_note = "; ".join(
        ([f"resumed from step {resumed}"] if resumed is not None else [])
        + ([f"{skipped} skipped, loss not a number"] if skipped else [])
    )
    drop_note = f"{dropped:,} dropped" if dropped else "none dropped"
    stale = summary["max_staleness_seen"]
    stale_note = (
        "always on-policy" if not stale else f"at most {number(stale)} version{'s' * (stale != 1)} old"
    )
    tokens = summary.get("completion_tokens") or 0
    samples = summary["samples_per_second"]
    per_answer = (
        f"{number(summary['completion_tokens_per_second'] / samples, 1)} per answer" if samples else ""
    )
    return [
        _outcome_tile(summary),
        ("Steps", f"{steps:,}{of}", step_note),
        ("Time", duration(summary["wall_seconds"]), _per_step(summary)),
        ("Speed", f"{number(summary['completion_tokens_per_second'], 1)} <small>tokens/s</small>",
         f"{number(summary['samples_per_second'], 1)} answers/s"),
        ("Groups trained", f"{summary['groups_trained']:,}", f"{drop_note}; {stale_note}"),
        ("Completion tokens", _compact(tokens), per_answer),
    ]  # fmt: skip


def _outcome_tile(summary: Mapping[str, Any]) -> tuple[str, str, str]:
    curve = [score for _, score in summary["heldout_curve"]]
    label, best, at = "Held-out score", summary.get("best_heldout"), summary.get("best_heldout_step")
    if not curve:
        label, best = "Reward, first to last step", None
        curve = [value for value in summary["reward_curve"] if value is not None]
    if not curve:
        return label, "\u2013", "nothing measured yet"
    if len(curve) == 1:
        return label, _score(curve[0]), "measured once"
    start, end = curve[0], curve[-1]
    change = round(end - start, 2)
    look, sign = ("up", "+") if change > 0 else ("down", "") if change < 0 else ("", "\u00b1")
    note = f", best {_score(best)} at step {at}" if best is not None and best > end else ""
    value = f'<span class="from">{_score(start)}</span><span class="arrow">\u2192</span>{_score(end)}'
    return label, value, f'<span class="{look}">{sign}{_score(change)}</span>{note}'


def _score(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212")


def _per_step(summary: Mapping[str, Any]) -> str:
    steps = len(summary["reward_curve"])
    return f"{duration(summary['wall_seconds'] / steps)} per step" if steps else ""


def _compact(value: float) -> str:
    for size, unit, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if value >= least:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"


def curves(sections: Sequence[tuple[str, Sequence[Chart]]], thinned: int) -> str:
    """Return the empty places of the charts, section by section; the script fills them."""
    switch = (
        '<div class="switch" role="group" aria-label="Horizontal axis">'
        '<button data-axis="step" aria-pressed="true">Steps</button>'
        '<button data-axis="elapsed" aria-pressed="false">Time</button></div>'
    )
    blocks = []
    for position, (title, charts) in enumerate(sections):
        small = sum(not chart.wide for chart in charts)
        shape = {2: " pairs", 4: " pairs", 5: " fives"}.get(small, "") + (" odd" if small % 2 else "")
        tools = switch if position == 0 else ""
        head = f'<div class="bar"><h2>{escape(title)}</h2>{tools}</div>'
        blocks.append(
            f'<section>{head}<div class="charts{shape}" data-charts="{escape(title)}"></div></section>'
        )
    if thinned > 1:
        blocks.append(
            f'<p class="note">Each point stands for {thinned} steps; metrics.jsonl has them all.</p>'
        )
    return "\n".join(blocks)


def timeline_section(view: Mapping[str, Any] | None) -> str:
    """Return the place of the timeline strip with its legend, nothing when there are no spans."""
    if view is None:
        return ""
    legend = "".join(
        f'<li><i class="swatch c-{colour}"></i>{escape(name)}</li>' for name, colour in view["names"]
    )
    hidden = f" {view['hidden_actors']} more actors are in the file." if view["hidden_actors"] else ""
    return (
        f'<section><div class="bar"><h2>Timeline</h2><ul class="legend">{legend}</ul></div>'
        '<figure class="card chart wide" id="timeline"></figure>'
        f'<p class="note">The last {duration(view["seconds"])} of the run, one row per actor. '
        f"timeline.json holds the whole run; open it in Perfetto or chrome://tracing.{hidden}</p></section>"
    )


def examples_section(examples: Sequence[Example]) -> str:
    """Return the table of answers before and after, nothing without examples."""
    if not examples:
        return ""
    rows = []
    for position, example in enumerate(examples):
        more = ' class="more"' if position >= EXAMPLES_SHOWN else ""
        rows.append(
            f'<tr{more}><td data-label="Prompt"><div class="text">{escape(example.prompt)}</div></td>'
            f'<td data-label="Expected"><div class="text">{escape(example.expected)}</div></td>'
            f'<td data-label="Before">{_answer(example.before, example.before_right)}</td>'
            f'<td data-label="After">{_answer(example.after, example.after_right)}</td></tr>'
        )
    button = ""
    if len(examples) > EXAMPLES_SHOWN:
        button = f'<button class="button" data-show-all>Show all {len(examples)} examples</button>'
    return (
        "<section><h2>Answers before and after</h2>"
        '<table class="card examples"><thead><tr>'
        "<th>Prompt</th><th>Expected</th><th>Before</th><th>After</th></tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table>{button}</section>"
    )


def _answer(text: str | None, right: bool | None) -> str:
    if text is None:
        return '<span class="none">not taken</span>'
    sign = ""
    if right is not None:
        mark, look = ("\u2713", "right") if right else ("\u2717", "wrong")
        sign = (
            f'<span class="sign {look}" aria-hidden="true">{mark}</span><span class="hidden">{look}:</span>'
        )
    body = escape(text) if text else '<span class="none">empty</span>'
    return f'<div class="answer">{sign}<div class="text">{body}</div></div>'


def groups_section(summary: Mapping[str, Any]) -> str:
    """Return what became of all groups: trained on, without signal, dropped by reason."""
    trained, dropped = summary["groups_trained"], dict(summary["groups_dropped"])
    flat = summary.get("zero_variance_groups") or 0
    share = f" ({flat / trained:.0%})" if trained and flat else ""
    lost = sum(dropped.values())
    text = f"{trained:,} groups trained on, {flat:,}{share} of them without signal; {lost:,} dropped"
    bars = "".join(
        f"<span>{escape(words(reason))}</span>"
        f'<span class="track"><i style="width:{100 * count / lost:.1f}%"></i></span><b>{count:,}</b>'
        for reason, count in sorted(dropped.items(), key=lambda item: -item[1])
        if count
    )
    table = f'<div class="drops">{bars}</div>' if bars else ""
    return (
        f'<section><h2>Groups</h2><div class="card panel" id="groups"><p>{text}.</p>{table}</div></section>'
    )


def warm_start_note(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about the supervised warm start from its metrics events, nothing when there were none."""
    if not events:
        return ""
    last, steps = events[-1], events[-1].get("warm_start_step")
    score = next((event["score"] for event in reversed(events) if event.get("score") is not None), None)
    seconds = last["time"] - events[0]["time"]
    parts = [f"{steps:,} supervised steps" if isinstance(steps, int) else "a supervised start"]
    parts += [f"to a sampled score of {_score(score)}"] if score is not None else []
    parts += [f"in {duration(seconds)}"] if seconds > 0 else []
    return f'<p class="note">Before reinforcement learning: {" ".join(parts)}; not part of the curves.</p>'


def events_section(events: Sequence[Mapping[str, Any]]) -> str:
    """Return what happened besides steps: every event with a `text`, and resumes; the last 50."""
    rows = []
    for event in events:
        text = "Resumed from a checkpoint" if event["event"] == "resumed" else event.get("text")
        if text:
            rows.append(f"<li><b>step {event['step']:,}</b><span>{escape(str(text))}</span></li>")
    if not rows:
        return ""
    shown = "".join(rows[-50:])
    return f'<section><h2>Events</h2><div class="card panel"><ul class="events">{shown}</ul></div></section>'


def config_section(yaml_text: str) -> str:
    """Return the configuration, folded; keys and comments coloured."""
    if not yaml_text.strip():
        return ""
    lines = "\n".join(_yaml_line(line) for line in yaml_text.rstrip().split("\n"))
    title = 'Configuration<span class="note">run.yaml with every default filled in</span>'
    return f'<details class="card" id="config"><summary>{title}</summary><pre>{lines}</pre></details>'


def _yaml_line(line: str) -> str:
    if line.lstrip().startswith("#"):
        return f'<span class="comment">{escape(line)}</span>'
    match = re.match(r"(\s*(?:- )*)([\w.$-]+)(:(?:\s.*)?)$", line)
    if not match:
        return escape(line)
    indent, key, rest = (escape(part) for part in match.groups())
    return f'{indent}<span class="key">{key}</span>{rest}'


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
