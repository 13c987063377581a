"""A plan of a run as a picture (SVG): nodes, their devices, who is on each, and how full it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from rl_api.sizes.layout import Node
from rl_api.sizes.memory import gigabytes, parameters
from rl_api.sizes.run_plan import RolePlan, RunPlan
from rl_cli.plan_text import WORDS, total

MOST_NODES: Final = 32
"""Nodes that are drawn; of more the first."""
_COLOURS: Final = {
    "weights": "#4269d0",
    "gradients": "#97bbf5",
    "moments": "#6cc5b0",
    "reference": "#9c6b4e",
    "critic": "#a463f2",
    "gathered": "#ff8ab7",
    "activations": "#ff725c",
    "caches": "#efb118",
    "checkpoint": "#c9a227",
    "overhead": "#9498a0",
}
_TOO_MUCH: Final = "#c00000"
_ROLES: Final = {"learner": "#1f3d7a", "sampler": "#8a6100", "reward model": "#7a1f5c"}
_WIDTH, _MARGIN, _LINE = 960, 24, 20
_CELL, _CELL_HEIGHT, _GAP = 52, 92, 6
_PER_ROW = 8
_BAR = 22


def picture(plan: RunPlan) -> str:
    """The SVG's text."""
    body: list[str] = []
    y = _MARGIN + 18
    body.append(
        _text(_MARGIN, y, f"{plan.shape.family}, {parameters(plan.shape.parameters)}", size=18, weight="600")
    )
    y += 14
    for role in plan.roles:
        body += _bar(role, y)
        y += _BAR + 34
    body += _legend(plan, y)
    y += 2 * _LINE + 16
    for node in plan.nodes[:MOST_NODES]:
        body += _node(node, plan, y)
        y += _height(node) + 14
    if len(plan.nodes) > MOST_NODES:
        body.append(_text(_MARGIN, y + 12, f"and {len(plan.nodes) - MOST_NODES} nodes more"))
        y += _LINE + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + _MARGIN}" width="{_WIDTH}" '
        f'height="{y + _MARGIN}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#1c1e21">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _bar(role: RolePlan, y: int) -> Iterator[str]:
    """One device of a role: its parts beside each other, and a line where its memory ends."""
    device = role.place.device
    memory = device.memory if device is not None else role.parts.total
    whole = max(memory, role.parts.total, 1)
    width = _WIDTH - 2 * _MARGIN
    of = f" of {gigabytes(memory)}" if device is not None else ""
    over = ", too much" if role.misfit else ""
    yield _text(
        _MARGIN,
        y + 14,
        f"one device of {role.name}: {total(role)}{of}{over}",
        fill=_ROLES[role.name],
    )
    yield _rect(_MARGIN, y + 20, round(width * memory / whole, 1), _BAR, "#eceef1")
    x = float(_MARGIN)
    for part, size in role.parts.items():
        part_width = width * size / whole
        if size:
            yield _rect(
                x, y + 20, round(part_width, 1), _BAR, _COLOURS[part], f"{WORDS[part]}: {gigabytes(size)}"
            )
        x += part_width
    if role.parts.total > memory:
        edge = _MARGIN + width * memory / whole
        yield _rect(round(edge, 1) - 1, y + 16, 2, _BAR + 8, _TOO_MUCH)


def _legend(plan: RunPlan, y: int) -> Iterator[str]:
    shown = [part for part in WORDS if any(dict(role.parts.items())[part] for role in plan.roles)]
    for index, part in enumerate(shown):
        x, line = _MARGIN + index % 5 * 182, y + index // 5 * _LINE
        yield _rect(x, line, 12, 12, _COLOURS[part])
        yield _text(x + 18, line + 11, WORDS[part])


def _height(node: Node) -> int:
    count = max(node.devices or 0, len(node.seats))
    return 26 + -(-count // _PER_ROW) * (_CELL_HEIGHT + _GAP)


def _node(node: Node, plan: RunPlan, y: int) -> Iterator[str]:
    """A node: a cell for each device, filled as far as its memory is."""
    count = max(node.devices or 0, len(node.seats))
    width = (_WIDTH - 2 * _MARGIN - 16 - (_PER_ROW - 1) * _GAP) // _PER_ROW
    yield (
        f'<rect x="{_MARGIN}" y="{y}" width="{_WIDTH - 2 * _MARGIN}" height="{_height(node)}" rx="6" fill="#f7f8fa" '
        'stroke="#c9ced6"/>'
    )
    yield _text(
        _MARGIN + 8, y + 17, f"{node.pool}, node {node.index}" if node.devices else node.pool, weight="600"
    )
    for place in range(count):
        x = _MARGIN + 8 + place % _PER_ROW * (width + _GAP)
        top = y + 24 + place // _PER_ROW * (_CELL_HEIGHT + _GAP)
        if place >= len(node.seats):
            yield _rect(x, top, width, _CELL_HEIGHT, "none", stroke="#c9ced6")
            yield _text(x + 8, top + 16, "free", fill="#767b84")
            continue
        seat = node.seats[place]
        role = next(one for one in plan.roles if one.name == seat.role)
        yield _rect(
            x, top, width, _CELL_HEIGHT, "#ffffff", stroke=_TOO_MUCH if role.misfit else _ROLES[seat.role]
        )
        parts = list(role.parts.items())
        if seat.guest and plan.shared is not None and plan.shared.residency == "keep":
            parts += next(one for one in plan.roles if one.name == "sampler").parts.items()
        top_of_fill = top + (51 if seat.guest else 38)
        yield from _fill(role, parts, x + 1, top_of_fill, width - 2, top + _CELL_HEIGHT - 1 - top_of_fill)
        yield _text(x + 6, top + 15, f"{seat.role} pod {seat.pod}", size=12, fill=_ROLES[seat.role])
        lines = [*_lines(seat.role, seat.pod, seat.label), *([seat.guest] if seat.guest else [])]
        for line, words in enumerate(lines):
            yield _text(
                x + 6,
                top + 30 + 13 * line,
                words,
                size=11,
                fill=_ROLES["sampler"] if words == seat.guest else "#1c1e21",
            )


def _lines(role: str, pod: int, label: str) -> Sequence[str]:
    rest = label.removeprefix(f"{role} {pod}").strip()
    return (rest,) if rest else ()


def _fill(
    role: RolePlan, parts: Sequence[tuple[str, int]], x: int, y: int, width: int, height: int
) -> Iterator[str]:
    """The parts of one device from the bottom up, as far as its memory goes."""
    total = sum(size for _, size in parts)
    memory = role.place.device.memory if role.place.device is not None else total
    bottom = float(y + height)
    for part, size in parts:
        tall = min(height * size / max(memory, 1), bottom - y)
        if tall > 0:
            bottom -= tall
            yield _rect(
                x,
                round(bottom, 1),
                width,
                round(tall, 1),
                _COLOURS[part],
                f"{WORDS[part]}: {gigabytes(size)}",
            )


def _rect(
    x: float, y: float, width: float, height: float, fill: str, title: str = "", stroke: str = ""
) -> str:
    edge = f' stroke="{stroke}" rx="3"' if stroke else ""
    head = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{edge}'
    return f"{head}><title>{escape(title)}</title></rect>" if title else f"{head}/>"


def _text(
    x: float, y: float, words: str, *, size: int = 13, weight: str = "400", fill: str = "#1c1e21"
) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}">{escape(words)}</text>'
