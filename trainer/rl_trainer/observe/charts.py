"""Which curves the report shows, from which numbers: a table of charts, pure functions over step records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from rl_trainer.observe.metrics import StepRecord

Column = list[float | None]
Columns = dict[str, Column]

ASSETS = resources.files("rl_trainer.observe") / "assets"
MAX_POINTS = 1200


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve: its column, its legend, its look (`line`, or `points` when measured now and then)."""

    column: str
    label: str
    colour: str = "blue"
    style: str = "line"


@dataclasses.dataclass(frozen=True)
class Chart:
    """One chart."""

    id: str  # name in the page, also of the HTML element
    title: str
    hint: str  # half a sentence that says how to read it
    series: tuple[Series, ...]
    unit: str = ""  # of the vertical axis; `fraction` is shown in percent, an empty one is a plain number
    kind: str = "line"  # or `stack`, for bars of parts that add up
    floor: bool = True  # whether the vertical axis starts at zero
    wide: bool = False  # whether it takes a whole row
    bounds: tuple[float, float] | None = None  # fixed range of the vertical axis, when the quantity has one
    target: float | None = None  # a dashed line at this height: the value the run stops at


_HELDOUT = Series("heldout_score", "held-out score", "orange", "points")
_REWARD = Series("reward_mean", "reward")
_HELDOUT_HINT = "Exact answers to prompts never trained on, greedy"


def _chart(series: Sequence[Mapping[str, str]], **fields: Any) -> Chart:
    return Chart(**fields, series=tuple(Series(**one) for one in series))


SECTIONS = tuple(
    (title, tuple(_chart(**chart) for chart in charts))
    for title, charts in yaml.safe_load((ASSETS / "charts.yaml").read_text(encoding="utf-8")).items()
)
"""The charts below the outcome's, by section."""

_PARTS = [one for _, charts in SECTIONS for chart in charts if chart.id == "time" for one in chart.series]
_PART_COLUMNS = [series.column for series in _PARTS]
PART_COLOURS = {series.label: series.colour for series in _PARTS}
"""The parts of a step, and their colours."""


def outcome_charts(columns: Columns, target: float | None) -> tuple[Chart, ...]:
    """Return the charts at the top: reward and held-out score, in one when both are within 0 to 1.

    `target` is `stop.targetReward`: a held-out score when the run evaluates, else a reward.
    """
    rewards = present(columns.get("reward_mean"))
    evaluated = bool(present(columns.get("heldout_score")))
    unit_scale = all(-0.001 <= reward <= 1.001 for reward in rewards)
    bounds = (0.0, 1.0) if unit_scale else None
    if evaluated and unit_scale:
        hint = _HELDOUT_HINT + "; reward is that of the sampled answers"
        both = (_REWARD, _HELDOUT)
        title = "Reward and held-out score"
        return (Chart("reward", title, hint, both, wide=True, bounds=bounds, target=target),)
    reward = Chart(
        "reward",
        "Reward",
        "Mean over the answers trained on",
        (_REWARD,),
        floor=unit_scale,
        wide=True,
        bounds=bounds,
        target=None if evaluated else target,
    )
    if not evaluated:
        return (reward,)
    heldout = Chart(
        "heldout", "Held-out score", _HELDOUT_HINT, (_HELDOUT,), wide=True, bounds=(0.0, 1.0), target=target
    )
    return (heldout, reward)


def build_columns(records: Sequence[StepRecord], heldout: Sequence[tuple[int, float]]) -> Columns:
    """Return the numbers of the page by column, one row per step; None where there is no number.

    Rows are step records by step, and steps at which only an evaluation happened (step 0). Besides the fields
    of `StepRecord` there are `elapsed` (seconds of training until the end of the step, all attempts together)
    `time_other` (wall time that no part accounts for) and `measured_seconds` (wall time of steps with a plan). `samplers` is
    empty where it never changed.
    """
    by_step = {record.step: record for record in records}
    scores = dict(heldout)
    names = [f.name for f in dataclasses.fields(StepRecord) if f.name not in ("groups_dropped", "prompts")]
    columns: Columns = {name: [] for name in [*names, "elapsed", "time_other", "measured_seconds"]}
    elapsed = 0.0
    for step in sorted(by_step.keys() | scores.keys()):
        record = by_step.get(step)
        if record and math.isfinite(record.wall_seconds):
            elapsed += record.wall_seconds
        for name in names:
            columns[name].append(_number(getattr(record, name), name) if record else None)
        columns["step"][-1] = step
        columns["elapsed"].append(elapsed)
        columns["heldout_score"][-1] = scores.get(step)
        columns["time_other"].append(_other(record) if record else None)
        planned = record is not None and math.isfinite(record.predicted_seconds)
        columns["measured_seconds"].append(_number(record.wall_seconds) if record and planned else None)
    if sum(present(columns["time_other"])) < 0.02 * elapsed:
        columns["time_other"] = [None] * len(columns["step"])
    if len(set(present(columns["samplers"]))) < 2:  # the number that the run asked for, all the time
        columns["samplers"] = [None] * len(columns["step"])
    return thin(columns, MAX_POINTS)


def present(column: Sequence[float | None] | None) -> list[float]:
    """Return the numbers of a column without the gaps."""
    return [value for value in column or () if value is not None]


def thin(columns: Columns, limit: int) -> Columns:
    """Return at most `limit` rows, each for several: means, maxima of maxima, the last of what adds up."""
    count = len(columns["step"])
    size = math.ceil(count / limit) if count > limit else 1
    if size == 1:
        return columns
    return {
        name: [_merge(name, column[start : start + size]) for start in range(0, count, size)]
        for name, column in columns.items()
    }


def visible(charts: Sequence[Chart], columns: Columns) -> list[Chart]:
    """Return the charts that have something to show, without the curves that have nothing."""
    shown = []
    for chart in charts:
        series = tuple(s for s in chart.series if _worth_drawing(chart, columns.get(s.column)))
        if series:
            shown.append(dataclasses.replace(chart, series=series))
    return shown


def _worth_drawing(chart: Chart, column: Column | None) -> bool:
    numbers = present(column)
    return any(numbers) if chart.kind == "stack" else bool(numbers)


def _number(value: Any, name: str = "") -> float | None:
    """As the page shows it: bytes in MB."""
    scale = 1e-6 if name.endswith("_bytes") else 1.0
    return scale * float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _other(record: StepRecord) -> float | None:
    parts: list[float] = [getattr(record, column) for column in _PART_COLUMNS if column != "time_other"]
    known = [part for part in parts if math.isfinite(part)]
    if not known or not math.isfinite(record.wall_seconds):
        return None
    return max(0.0, record.wall_seconds - sum(known))


def _merge(name: str, values: Column) -> float | None:
    numbers = present(values)
    if not numbers:
        return None
    if name.endswith("_max"):
        return max(numbers)
    if name in ("step", "elapsed", "heldout_score", "groups_trained", "skipped_steps", "weight_version"):
        return numbers[-1]
    return math.fsum(numbers) / len(numbers)
