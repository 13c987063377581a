"""`report.html`: a run on one page that opens anywhere, without network, from the files of the run folder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import yaml

from rl_api.errors import RLTrainError
from rl_trainer.observe import fragments
from rl_trainer.observe.charts import (
    ASSETS,
    PART_COLOURS,
    SECTIONS,
    Chart,
    Columns,
    build_columns,
    outcome_charts,
    visible,
)
from rl_trainer.observe.examples import Example, read_examples
from rl_trainer.observe.metrics import METRICS_FILE, StepRecord, heldout_curve, read_events, read_metrics
from rl_trainer.observe.summary import SUMMARY_FILE, summarize
from rl_trainer.observe.timeline import DROPPED, TIMELINE_FILE, Span, read_timeline
from rl_trainer.storage.files import dump_json, read_json, write_atomic

REPORT_FILE = "report.html"
RUN_FILE = "run.yaml"
MAX_ACTORS = 32
MAX_SPANS_PER_ACTOR = 150
WINDOW_SECONDS = 60.0
_OTHER_COLOURS = ("sky", "rose", "moss", "violet", "amber")


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What the page shows, read from a run folder.

    Attributes:
        name: name of the run.
        records: one record per step.
        heldout: (step, held-out score) of every evaluation.
        events: the other lines of the metrics (`resumed`, `warm_start`, `note`, ...).
        summary: as `summarize` returns it; None while the run goes on.
        spans: the timeline.
        examples: answers before and after.
        run: the run's YAML as a dict, and `run_yaml` as text.
    """

    name: str
    records: Sequence[StepRecord] = ()
    heldout: Sequence[tuple[int, float]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] | None = None
    spans: Sequence[Span] = ()
    examples: Sequence[Example] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    run_yaml: str = ""


def write_report(run_folder: Path | str) -> Path:
    """Write `report.html` of a run folder, finished or not, and return its path. Can be repeated any time.

    Raises:
        RLTrainError: the folder holds no run, one of its files is broken, or the page cannot be written.
    """
    folder = Path(run_folder)
    path = folder / REPORT_FILE
    write_atomic(path, render(load_run(folder)))
    return path


def load_run(folder: Path) -> RunData:
    """Read what the page shows from a run folder.

    Raises:
        RLTrainError: the folder holds no run or one of its files is broken.
    """
    metrics, run_file = folder / METRICS_FILE, folder / RUN_FILE
    if not metrics.exists() and not run_file.exists():
        raise RLTrainError(
            f"{folder}: holds no run (neither {METRICS_FILE} nor {RUN_FILE}); name the folder of a run"
        )
    run_yaml = run_file.read_text(encoding="utf-8") if run_file.exists() else ""
    try:
        run = yaml.safe_load(run_yaml)
    except yaml.YAMLError as error:
        raise RLTrainError(f"{run_file}: is not YAML ({' '.join(str(error).split())})") from error
    run = run if isinstance(run, dict) else {}
    summary = read_json(folder / SUMMARY_FILE)
    return RunData(
        name=str(_at(run, "metadata", "name") or (summary or {}).get("name") or folder.resolve().name),
        records=read_metrics(metrics),
        heldout=heldout_curve(metrics),
        events=read_events(metrics),
        summary=summary if isinstance(summary, dict) else None,
        spans=read_timeline(folder / TIMELINE_FILE),
        examples=read_examples(folder),
        run=run,
        run_yaml=run_yaml,
    )


def render(run: RunData) -> str:
    """Return the page as HTML text."""
    seed = _at(run.run, "spec", "seed")
    resumed = [event["step"] for event in run.events if event["event"] == "resumed"]
    warm_start = [event for event in run.events if event["event"] == "warm_start"]
    computed = summarize(
        run.records,
        run.heldout,
        name=run.name,
        seed=seed or 0,
        stop_reason="",
        resumed_from=resumed[-1] if resumed else None,
    )
    # A summary of fewer or more steps is that of an earlier attempt: the run was resumed and goes on.
    finished = run.summary is not None and run.summary.get("steps") == computed["steps"]
    summary = computed | dict(run.summary or {}) if finished else computed
    stop_reason = summary["stop_reason"] or None if finished else None
    target = _at(run.run, "spec", "stop", "targetReward")
    columns = build_columns(run.records, run.heldout)
    sections = _sections(columns, target if isinstance(target, int | float) else None)
    view = timeline_view(run.spans)
    data = {
        "columns": {name: _rounded(column) for name, column in _used(columns, sections).items()},
        "sections": {title: [asdict(chart) for chart in charts] for title, charts in sections},
        "marks": {"resumed": resumed},
        "timeline": view,
    }
    steps = len({record.step for record in run.records} | {step for step, _ in run.heldout})
    thinned = -(-steps // len(columns["step"])) if columns["step"] else 1
    max_steps = _at(run.run, "spec", "stop", "maxSteps")
    empty = '<p class="note">No step has been finished yet.</p>'
    parts = {
        "title": escape(f"{run.name} \u00b7 rltrain"),
        "css": _asset("report.css"),
        "name": escape(run.name),
        "status": fragments.status_pill(stop_reason),
        "what": fragments.what_was_trained(run.run, seed),
        "warm_start": fragments.warm_start_note(warm_start),
        "events": fragments.events_section(run.events),
        "tiles": fragments.tiles(summary, max_steps if isinstance(max_steps, int) else None),
        "curves": fragments.curves(sections, thinned) if sections else empty,
        "timeline": fragments.timeline_section(view),
        "examples": fragments.examples_section(run.examples),
        "groups": fragments.groups_section(summary) if run.records else "",
        "config": fragments.config_section(run.run_yaml),
        "footer": "Made from the files beside it; <code>rltrain report FOLDER</code> makes it again.",
        "data": _inline(data),
        "script": "\n".join(_asset(name) for name in ("format.js", "charts.js", "timeline.js", "report.js")),
    }
    # One pass: a `{{name}}` inside a user's text is text, not a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))


def timeline_view(spans: Sequence[Span]) -> dict[str, Any] | None:
    """Return the recent window of the timeline for the strip: what can be told apart on a screen.

    That is at most `WINDOW_SECONDS`, `MAX_SPANS_PER_ACTOR` spans of the busiest actor, `MAX_ACTORS` rows.
    Keys: `seconds` (length), `actors`, `hidden_actors` (rows left out), `names` ([name, colour]) and `spans`
    ([actor, name, from, to, depth], seconds from the start of the window). None without spans.
    """
    by_actor: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name != DROPPED:
            by_actor[span.actor].append(span)
    if not by_actor:
        return None
    actors = sorted(by_actor, key=_natural)[:MAX_ACTORS]
    rows = [sorted(by_actor[actor], key=lambda span: (span.start, -span.end)) for actor in actors]
    end = max(span.end for row in rows for span in row)
    first = min(row[0].start for row in rows)
    busiest = max(
        (row[-MAX_SPANS_PER_ACTOR].start for row in rows if len(row) > MAX_SPANS_PER_ACTOR), default=first
    )
    start = max(end - WINDOW_SECONDS, busiest)
    rows = [[span for span in row if span.end >= start] for row in rows]
    names = sorted({span.name for row in rows for span in row}, key=lambda name: (_order(name), name))
    colours = _colours(names)
    return {
        "seconds": max(end - start, 1e-3),
        "actors": actors,
        "hidden_actors": len(by_actor) - len(actors),
        "names": [[name, colours[name]] for name in names],
        "spans": [
            [
                position,
                names.index(span.name),
                round(max(0.0, span.start - start), 5),
                round(max(0.0, span.end - start), 5),
                depth,
            ]
            for position, row in enumerate(rows)
            for span, depth in zip(row, _depths(row), strict=True)
        ],
    }


def _depths(row: Sequence[Span]) -> list[int]:
    """Return in how many other spans of its actor each span lies; a partial overlap is not inside."""
    ends: list[float] = []
    depths = []
    for span in row:
        while ends and ends[-1] < span.end:
            ends.pop()
        while ends and ends[-1] <= span.start:
            ends.pop()
        depths.append(len(ends))
        ends.append(span.end)
    return depths


def _sections(columns: Columns, target: float | None) -> list[tuple[str, list[Chart]]]:
    everything = [("Result", outcome_charts(columns, target)), *SECTIONS]
    shown = [(title, visible(charts, columns)) for title, charts in everything]
    return [(title, charts) for title, charts in shown if charts]


def _used(columns: Columns, sections: Sequence[tuple[str, Sequence[Chart]]]) -> Columns:
    used = {series.column for _, charts in sections for chart in charts for series in chart.series}
    return {name: columns[name] for name in ["step", "elapsed", *sorted(used)]}


def _rounded(column: Sequence[float | None]) -> list[float | None]:
    """Six digits are more than a pixel can show and half the bytes."""
    return [value if value is None or isinstance(value, int) else float(f"{value:.6g}") for value in column]


def _inline(value: Any) -> str:
    """Return JSON that may stand inside a script element: no `<`, so no `</script>` and no `<!--`."""
    return dump_json(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8").rstrip()


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _natural(actor: str) -> tuple[int, list[tuple[int, str]]]:
    """Order rows as data flows: driver, samplers, buffer, learners, rest; `sampler-10` after `sampler-9`."""
    roles = ("driver", "sampler", "buffer", "learner")
    rank = next((place for place, role in enumerate(roles) if actor.startswith(role)), len(roles))
    return rank, [
        (int(part or -1), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", actor)
    ]


def _order(name: str) -> int:
    parts = list(PART_COLOURS)
    return parts.index(name) if name in parts else len(parts)


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Known parts of the loop have the colours of the charts; other names take turns with what is left."""
    taken = {PART_COLOURS[name] for name in names if name in PART_COLOURS}
    free = [colour for colour in _OTHER_COLOURS if colour not in taken] or ["grey"]
    others = [name for name in names if name not in PART_COLOURS]
    turns = {name: free[position % len(free)] for position, name in enumerate(others)}
    return {name: PART_COLOURS.get(name) or turns[name] for name in names}
