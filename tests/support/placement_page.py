"""Writes docs/placement.md and its pictures: what the planner does, and what it makes of published figures.

python tests/support/placement_page.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from published_steps import Row, all_rows, embodied, reasoning_7b, regimes, spatial_over_temporal

from rl_api.planner.gantt import as_svg
from rl_api.planner.placement import Placement
from rl_api.planner.plan import Plan, make_plan, predict
from rl_api.planner.room import Room
from rl_api.planner.search import MOST_EVERY

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "placement.md"
GROUPS = 512

PICTURES: Mapping[str, Placement] = {
    "collocated": Placement(64, 64, 64, GROUPS),
    "disaggregated": Placement(24, 40, 0, GROUPS),
    "parts": Placement(24, 40, 0, 8),
    "hybrid": Placement(40, 64, 40, 64),
}
"""Of verl's 7B on 64 cards."""


@cache
def images() -> Mapping[str, str]:
    """SVG by the picture's name."""
    profile, found = reasoning_7b(), {}
    for name, placement in PICTURES.items():
        result = predict(profile, placement, in_order=False)
        seconds = result.published[-1] - result.published[-2]
        title = f"{placement.words(GROUPS)}: {seconds:.0f} s"
        found[name] = as_svg(result.last_step(), seconds, title)
    return found


@cache
def plan() -> Plan:
    """Of the profile of the pictures."""
    return make_plan(reasoning_7b(), Room(64, in_order=False))


@cache
def page() -> str:
    """The page's text."""
    rows, narrow, narrower = all_rows(), regimes(0.5), regimes(0.35)
    gains = spatial_over_temporal(260.9, 168.0, (16, 32, 64), 8, switch=20.0)
    template = Path(__file__).with_name("placement_page.md").read_text(encoding="utf-8")
    return template.format(
        every=MOST_EVERY,
        plan="\n".join(f"- {line}" for line in _said(plan())),
        replay="\n".join(_table(rows)),
        misses="\n".join(f"- {_source(row)}: {row.error:+.0%}" for row in rows if abs(row.error) > 0.15),
        regimes="\n".join(_regimes()),
        parts_narrow=f"{narrow[-2].ahead:.2f}",
        behind_narrow=f"{narrow[-1].ahead:.2f}",
        parts_narrower=f"{narrower[-2].ahead:.2f}",
        behind_narrower=f"{narrower[-1].ahead:.2f}",
        maniskill=embodied(cpu_bound=False),
        libero=embodied(cpu_bound=True),
        ppo=", ".join(f"{gain:+.1%}" for gain in gains),
    )


def _said(planned: Plan) -> Iterator[str]:
    yield from (planned.reason, planned.limits, *planned.sensitivity)


def _regimes() -> Iterator[str]:
    yield "| change | collocated over disaggregated | published |"
    yield "| --- | --- | --- |"
    for change in regimes():
        yield f"| {change.what} | {change.ahead:.2f} | {change.published} |"


def _source(row: Row) -> str:
    return f"{row.source}, {row.what}"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| source | what | published | predicted | |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        how = "calibrates" if row.calibrates else f"{row.error:+.1%}"
        yield f"| {row.source} | {row.what} | {row.published:g} | {row.predicted:.4g} | {how} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for name, svg in images().items():
        (DOCS / "images" / f"placement-{name}.svg").write_text(svg, encoding="utf-8")
