"""`report.html`: a run on one page that opens anywhere, without network, from the files of the run folder."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from rl_api.errors import RLTrainError
from rl_api.printable import printable, printable_lines
from rl_trainer.observe import texts
from rl_trainer.observe.charts import (
    ASSETS,
    MAX_POINTS,
    PART_COLOURS,
    SECTIONS,
    Chart,
    Columns,
    build_columns,
    outcome_charts,
    visible,
)
from rl_trainer.observe.examples import EXAMPLES_FILE, read_examples
from rl_trainer.observe.metrics import METRICS_FILE, heldout_curve, read_events, read_metrics
from rl_trainer.observe.summary import SUMMARY_FILE, summarize
from rl_trainer.observe.timeline import DROPPED, TIMELINE_FILE, Span, read_timeline
from rl_trainer.observe.where import where
from rl_trainer.storage.files import finite, read_json, write_atomic

REPORT_FILE = "report.html"
RUN_FILE = "run.yaml"
MAX_ACTORS = 32
MAX_SPANS_PER_ACTOR = 150
WINDOW_SECONDS = 60.0
EXAMPLES_SHOWN = 8
DATA_FILES = (RUN_FILE, METRICS_FILE, SUMMARY_FILE, EXAMPLES_FILE, TIMELINE_FILE)
"""What the page is made of."""

_SCRIPTS = ("format.js", "charts.js", "timeline.js", "report.js")
_LONGEST_TEXT = 100_000
_LONGEST_NAME = 100
# What code for numbers and records raises where a file holds something else.
_NO_RUN = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
_OTHER_COLOURS = ("sand", "plum", "violet", "amber")


def write_report(run_folder: Path | str) -> Path:
    """Write `report.html` of a run folder, finished or not, and return its path. Can be repeated any time.

    Raises:
        RLTrainError: the folder holds no run, one of its files is broken, or the page cannot be written.
    """
    folder = Path(run_folder)
    path = folder / REPORT_FILE
    write_atomic(path, render(folder))
    return path


def render(folder: Path) -> str:
    """The page of a run folder, whoever wrote the files: what they hold is text and numbers on it, nothing else.

    Raises:
        RLTrainError: the folder holds no run, or one of its files is broken.
    """
    try:
        return _render(folder)
    except _NO_RUN as error:
        why = printable(f"{type(error).__name__}: {error}", _LONGEST_NAME)
        raise RLTrainError(f"{folder}: its files are not those of a run ({why})") from error


def _render(folder: Path) -> str:
    metrics, run_file = folder / METRICS_FILE, folder / RUN_FILE
    if not metrics.exists() and not run_file.exists():
        raise RLTrainError(
            f"{folder}: holds no run (neither {METRICS_FILE} nor {RUN_FILE}); name the folder of a run"
        )
    run_yaml = run_file.read_text(encoding="utf-8", errors="replace") if run_file.exists() else ""
    try:
        run = plain_values(yaml.safe_load(run_yaml))
    except yaml.YAMLError as error:
        raise RLTrainError(f"{run_file}: is not YAML ({' '.join(str(error).split())})") from error
    records, heldout, events = read_metrics(metrics), heldout_curve(metrics), read_events(metrics)
    seed, target = _at(run, "spec", "seed"), _at(run, "spec", "stop", "targetReward")
    max_steps = _at(run, "spec", "stop", "maxSteps")
    resumed = [event["step"] for event in events if event["event"] == "resumed"]
    resumed_from = resumed[-1] if resumed else None
    summary = summarize(records, heldout, name="", seed=seed or 0, stop_reason="", resumed_from=resumed_from)
    found = read_json(folder / SUMMARY_FILE)
    written = found if isinstance(found, dict) else {}
    # A summary of fewer or more steps is that of an earlier attempt: the run was resumed and goes on.
    if written.get("steps") == summary["steps"]:
        summary |= written
    columns = build_columns(records, heldout)
    sections = _sections(columns, target if isinstance(target, int | float) else None)
    view = timeline_view(read_timeline(folder / TIMELINE_FILE))
    scripts = "\n".join(map(_asset, _SCRIPTS))
    data = {
        "columns": {name: _rounded(column) for name, column in _used(columns, sections).items()},
        "sections": {title: [asdict(chart) for chart in charts] for title, charts in sections},
        "marks": {"resumed": resumed},
        "timeline": view,
    }
    steps = len({record.step for record in records} | {step for step, _ in heldout})
    return _template().render(
        name=str(_at(run, "metadata", "name") or written.get("name") or folder.resolve().name),
        stop_reason=summary["stop_reason"],
        what=texts.what_was_trained(run, seed),
        tiles=texts.tiles(summary, max_steps if isinstance(max_steps, int) else None),
        warm_start=texts.warm_start_line([event for event in events if event["event"] == "warm_start"]),
        sections=sections,
        thinned=math.ceil(steps / MAX_POINTS),
        where=where(records),
        timeline=view,
        examples=read_examples(folder),
        examples_shown=EXAMPLES_SHOWN,
        records=records,
        summary=summary,
        events=_events(events),
        config=texts.yaml_lines(run_yaml) if run_yaml.strip() else [],
        data=finite(data),
        scripts=Markup(scripts),
        scripts_hash=base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode(),
    )


def _template() -> Template:
    """Every text of a user or a model is escaped where the template puts it, and has nothing that changes its direction."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    for way in (texts.number, texts.duration, texts.short_duration, texts.words, texts.ended):
        environment.filters[way.__name__] = way
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["asset"] = _asset
    return environment.from_string(_asset("report.html"))


def _shown(value: Any) -> Any:
    """What an expression of the template gives, as it may be shown."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable_lines(value[:_LONGEST_TEXT])


def plain_values(value: Any, most: int = 100_000) -> Any:
    """YAML's maps and lists without what refers to itself or to the same part again and again, which would have no end.

    Raises ValueError where there are more than `most` values, or a key is no text.
    """
    left = most

    def copied(one: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {most:,} values")
        if isinstance(one, Mapping):
            return {str(key): copied(inner) for key, inner in one.items() if isinstance(key, str | int)}
        return [copied(inner) for inner in one] if isinstance(one, list) else one

    return copied(value)


def _events(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """What happened besides steps: every event with a `text`, and resumes; the last 50."""
    said = [
        (event["step"], "Resumed from a checkpoint" if event["event"] == "resumed" else event.get("text"))
        for event in events
    ]
    return [(step, str(text)) for step, text in said if text][-50:]


def timeline_view(spans: Sequence[Span]) -> dict[str, Any] | None:
    """Return the recent window of the timeline for the strip: what can be told apart on a screen.

    That is at most `WINDOW_SECONDS`, `MAX_SPANS_PER_ACTOR` spans of the busiest actor, `MAX_ACTORS` rows.
    Keys: `seconds` (length), `actors`, `hidden_actors` (rows left out), `names` ([name, colour]) and `spans`
    ([actor, name, from, to, depth], seconds from the start of the window). None without spans.
    """
    by_actor: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name != DROPPED:
            actor, name = printable(span.actor, _LONGEST_NAME), printable(span.name, _LONGEST_NAME)
            by_actor[actor].append(span._replace(actor=actor, name=name))
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
