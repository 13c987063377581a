"""Panels of a Grafana dashboard drawn without Grafana: same queries, places, legends and units, other looks.

It knows what the chart's dashboards use: time series (also stacked), stats, bars and tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import dates, pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

Line = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and values by time."""

Answers = Mapping[str, list[Line]]
"""What a panel's queries were answered with, by their refId."""

COLUMN, ROW, GAP = 0.62, 0.34, 0.09
"""Inches of Grafana's grid."""

ENTRIES: Final = 8
"""Lines of a legend, and rows of a table, at most."""


def draw(dashboard: dict[str, Any], answers: Mapping[int, Answers], said: str, file: Path) -> None:
    """Draw all panels, by id, into a PNG, below the title and what is said of it."""
    panels = dashboard["panels"]
    width = max(one["gridPos"]["x"] + one["gridPos"]["w"] for one in panels) * COLUMN
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels) * ROW + 0.7
    figure = pyplot.figure(figsize=(width, height), facecolor="#f4f5f5")
    figure.text(0.12 / width, 1 - 0.27 / height, dashboard["title"], fontsize=14, weight="bold", va="center")
    figure.text(0.12 / width, 1 - 0.53 / height, said, fontsize=9, color="#555", va="center")
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] * COLUMN + GAP, height - 0.7 - place["y"] * ROW - GAP
        wide, high = place["w"] * COLUMN - 2 * GAP, place["h"] * ROW - 2 * GAP
        card = figure.add_axes((left / width, (top - high) / height, wide / width, high / height))
        card.set(xticks=[], yticks=[], facecolor="white")
        for spine in card.spines.values():
            spine.set_color("#d8d9da")
        figure.text(
            (left + 0.1) / width,
            (top - 0.14) / height,
            panel["title"],
            fontsize=9,
            weight="bold",
            va="center",
        )
        low = 0.52 if panel["type"] == "timeseries" else 0.2  # inches, for times and the legend
        axes = figure.add_axes(
            (
                (left + 0.62) / width,
                (top - high + low) / height,
                (wide - 0.75) / width,
                (high - 0.34 - low) / height,
            )
        )
        _KINDS[panel["type"]](axes, panel, answers[panel["id"]])
    figure.savefig(file, dpi=72)
    pyplot.close(figure)


def said_as(value: float, unit: str) -> str:
    """A value as Grafana writes it in this unit."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{value * 100:.0f}%"
    if unit == "s":
        for name, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
            if abs(value) >= seconds:
                return f"{value / seconds:.1f} {name}"
        return f"{value:.0f} s"
    return f"{value:,.1f}".removesuffix(".0")


def legend(target: dict[str, Any], labels: Mapping[str, str]) -> str:
    """The legend of a line."""
    text = target.get("legendFormat", "")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), text)


def _lines(panel: dict[str, Any], answers: Answers) -> list[tuple[str, list[tuple[float, float]]]]:
    return [
        (legend(target, labels), values)
        for target in panel["targets"]
        for labels, values in answers[target["refId"]]
    ]


def _unit(panel: dict[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def _series(axes: Axes, panel: dict[str, Any], answers: Answers) -> None:
    lines, defaults = _lines(panel, answers), panel["fieldConfig"]["defaults"]
    times = sorted({at for _, values in lines for at, _ in values})
    moments = [datetime.fromtimestamp(at, UTC) for at in times]
    known = [(name, dict(values)) for name, values in lines]
    if defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal":
        heights = [[values.get(at, 0.0) for at in times] for _, values in known]
        axes.stackplot(moments, heights, labels=[name for name, _ in known], alpha=0.75)
    else:
        for name, values in known:  # a line ends where its series does
            axes.plot(moments, [values.get(at, math.nan) for at in times], label=name, linewidth=1.2)
    axes.set_ylim(bottom=defaults.get("min"), top=defaults.get("max"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: said_as(value, defaults["unit"])))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M", tz=UTC))
    axes.tick_params(labelsize=7, colors="#555", length=0)
    axes.grid(color="#ececec", linewidth=0.7)
    axes.margins(x=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        place = {"loc": "upper left", "bbox_to_anchor": (-0.06, -0.1), "ncols": 4, "frameon": False}
        axes.legend(handles[:ENTRIES], names[:ENTRIES], fontsize=6.5, **place)


def _stat(axes: Axes, panel: dict[str, Any], answers: Answers) -> None:
    axes.axis("off")
    values = [values[-1][1] for _, values in _lines(panel, answers)]
    text = said_as(values[0], _unit(panel)) if values else "-"
    axes.text(
        0.4, 0.5, text, fontsize=20, ha="center", va="center", transform=axes.transAxes, color="#2f6f4f"
    )


def _bars(axes: Axes, panel: dict[str, Any], answers: Answers) -> None:
    axes.axis("off")
    found = [(name, values[-1][1]) for name, values in _lines(panel, answers)]
    most = max((value for _, value in found), default=1.0) or 1.0
    top = panel["fieldConfig"]["defaults"].get("max", most)
    for row, (name, value) in enumerate(found):
        axes.barh(-row, top, color="#eef0f1", height=0.7, left=0)
        axes.barh(-row, value, color="#5794f2", height=0.7)
        axes.text(0, -row, f" {name}", fontsize=7.5, va="center")
        axes.text(top, -row, f"{said_as(value, _unit(panel))} ", fontsize=7.5, va="center", ha="right")
    axes.set_xlim(0, top)
    axes.set_ylim(-max(len(found), 4) + 0.4, 0.6)


def rows(panel: dict[str, Any], answers: Answers) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table: what its queries agree on makes a row, as Grafana merges them."""
    options = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
    names: dict[str, str] = options["renameByName"]
    order = sorted(names, key=lambda name: options["indexByName"][name])
    units = {
        override["matcher"]["options"]: one["value"]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "unit"
    }
    given = [labels.keys() for found in answers.values() for labels, _ in found]
    same = sorted(set.intersection(*map(set, given))) if given else []
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for target in panel["targets"]:
        column = f"Value #{target['refId']}"
        for labels, values in answers[target["refId"]]:
            row = merged.setdefault(tuple(labels[name] for name in same), {})
            row |= labels
            row[column] = said_as(values[-1][1], units.get(names.get(column, ""), _unit(panel)))
    return [names[name] for name in order], [
        [row.get(name, "") for name in order] for _, row in sorted(merged.items())
    ]


def _table(axes: Axes, panel: dict[str, Any], answers: Answers) -> None:
    axes.axis("off")
    heads, cells = rows(panel, answers)
    if not cells:
        return
    shown = cells[:ENTRIES]
    height = 0.12 * (len(shown) + 1)
    table = axes.table(
        cellText=shown,
        colLabels=heads,
        loc="upper left",
        cellLoc="left",
        bbox=(-0.06, 1.04 - height, 1.07, height),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    for (row, _), cell in table.get_celld().items():
        cell.set_linewidth(0.4)
        cell.set_edgecolor("#e4e5e6")
        cell.set_text_props(weight="bold" if row == 0 else "normal")
    if len(cells) > len(shown):
        axes.text(-0.05, -0.04, f"and {len(cells) - len(shown)} more", fontsize=7, transform=axes.transAxes)


_KINDS: Final = {"timeseries": _series, "stat": _stat, "bargauge": _bars, "table": _table}
