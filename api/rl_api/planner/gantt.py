"""One step of a simulated run as a picture: devices as rows, time from left to right. As text and as SVG; pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Final

from rl_api.planner.simulated import Span

MOST_ROWS: Final = 12
"""Devices that are drawn: of those that do the same the first."""

_COLOURS: Final = {
    "sample": "#efb118",
    "learn": "#4269d0",
    "switch": "#ff725c",
    "publish": "#6cc5b0",
    "judge": "#a463f2",
}
_LETTERS: Final = {"sample": "s", "learn": "L", "switch": "x", "publish": "p", "judge": "j"}
WORDS: Final = {
    "sample": "sampler decodes",
    "learn": "learner computes",
    "switch": "devices change hands",
    "publish": "new weights travel",
    "judge": "reward model scores",
}
"""What spans are for people."""

_WIDTH, _LEFT, _RIGHT, _ROW, _GAP, _TOP = 960, 110, 24, 20, 5, 56
_TITLE: Final = 105
"""Characters of a line."""


def rows_of(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """Devices with what they do, learners' first; of many alike (learners' with samplers, without, and samplers') the first
    few, the last of which says how many more there are."""
    rows: dict[str, list[Span]] = {}
    for span in spans:
        rows.setdefault(span.row, []).append(span)
    kinds: dict[tuple[str, bool], list[str]] = {}
    for name in sorted(rows, key=lambda name: (name.split()[0], int(name.split()[-1]))):
        kinds.setdefault((name.split()[0], any(span.what == "sample" for span in rows[name])), []).append(
            name
        )
    most = MOST_ROWS // max(1, len(kinds))
    found = []
    for _, names in sorted(kinds.items(), key=lambda item: (item[0][0], not item[0][1])):
        for name in names[:most]:
            more = len(names) - most
            found.append((name + (f" (+{more})" if more > 0 and name == names[most - 1] else ""), rows[name]))
    return found


def as_text(spans: Sequence[Span], seconds: float, width: int = 72) -> list[str]:
    """Lines for a terminal: a character is `seconds` / `width`; what takes most of it stands there."""
    rows = rows_of(spans)
    label = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, own in rows:
        cells = []
        for cell in range(width):
            begin, end = seconds * cell / width, seconds * (cell + 1) / width
            shares = {
                what: sum(
                    max(0.0, min(span.end, end) - max(span.start, begin)) for span in own if span.what == what
                )
                for what in _LETTERS
            }
            what = max(shares, key=lambda one: shares[one])
            cells.append(_LETTERS[what] if shares[what] > (end - begin) / 4 else ".")
        lines.append(f"{name.ljust(label)} |{''.join(cells)}|")
    lines.append(f"{' ' * label}  0{f'{seconds:.4g} s'.rjust(width - 1)}")
    used = {span.what for span in spans}
    words = ", ".join(f"{_LETTERS[what]} {WORDS[what]}" for what in _LETTERS if what in used)
    return [*lines, f"{' ' * label}  {words}"]


def as_svg(spans: Sequence[Span], seconds: float, title: str) -> str:
    """A picture of `seconds` of time, which spans lie in; `title` is what it shows."""
    rows = rows_of(spans)
    inner = _WIDTH - _LEFT - _RIGHT
    lines = wrap(title, _TITLE)
    body = [_text(_LEFT, 22 + 18 * index, line, size=14, weight="600") for index, line in enumerate(lines)]
    top = _TOP + 18 * (len(lines) - 1)
    x = float(_LEFT)
    used = {span.what for span in spans}
    for what, colour in _COLOURS.items():
        if what in used:
            body.append(f'<rect x="{x:.0f}" y="{top - 24}" width="12" height="12" fill="{colour}"/>')
            body.append(_text(x + 17, top - 13.5, WORDS[what], size=12))
            x += 30 + 7 * len(WORDS[what])
    y = top
    for name, own in rows:
        body.append(_text(_LEFT - 8, y + 14, name, size=12, anchor="end"))
        body.append(f'<rect x="{_LEFT}" y="{y}" width="{inner}" height="{_ROW}" fill="#eceef1"/>')
        for span in _joined(own, seconds / inner / 2):
            left = _LEFT + inner * span.start / seconds
            width = max(0.5, inner * (span.end - span.start) / seconds)
            body.append(
                f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}" fill="{_COLOURS[span.what]}">'
                f"<title>{escape(name)}: {WORDS[span.what]} from {span.start:.4g} to {span.end:.4g} s</title></rect>"
            )
        y += _ROW + _GAP
    for tick in range(5):
        at = _LEFT + inner * tick / 4
        body.append(
            f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{y}" stroke="#9498a0" stroke-width="0.5"/>'
        )
        anchor = {0: "start", 4: "end"}.get(tick, "middle")
        body.append(_text(at, y + 14, f"{seconds * tick / 4:.4g} s", size=12, anchor=anchor))
    height = y + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" fill="#1c1e21">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _joined(spans: Sequence[Span], gap: float) -> list[Span]:
    """Spans of a row, those of the same kind that nearly touch as one."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        if found and found[-1].what == span.what and span.start - found[-1].end <= gap:
            found[-1] = Span(span.row, span.what, found[-1].start, max(span.end, found[-1].end))
        else:
            found.append(span)
    return found


def _text(x: float, y: float, text: str, *, size: int, weight: str = "400", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
