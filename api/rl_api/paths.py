"""Paths of fields: `spec.task.rewards[0].rule` as text, ("spec", "task", "rewards", 0, "rule") as a value."""

from __future__ import annotations

import re
from collections.abc import Iterable

Path = tuple[str | int, ...]
"""Keys of objects (text) and positions in lists (whole numbers, from 0), outermost first."""

_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\d{1,9}\])*)")


def parse_path(text: str) -> Path:
    """The path that `text` names; `rewards.0.rule` is the same as `rewards[0].rule`. May raise ValueError."""
    path: list[str | int] = []
    for segment in text.split("."):
        match = _SEGMENT.fullmatch(segment)
        if match is None:
            raise ValueError(f"not a path: {text!r}")
        name, positions = match.groups()
        path.append(int(name) if name.isascii() and name.isdigit() and len(name) < 10 else name)
        path.extend(int(position) for position in re.findall(r"\d+", positions))
    return tuple(path)


def render_path(path: Iterable[str | int]) -> str:
    """The path as text: keys joined by dots, positions in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def too_deep(value: object, most: int) -> Path | None:
    """Where a value of plain data lies within more than `most` others; None: nowhere."""
    waiting: list[tuple[Path, object]] = [((), value)]
    while waiting:
        path, one = waiting.pop()
        parts = (
            [*one.items()] if isinstance(one, dict) else [*enumerate(one)] if isinstance(one, list) else []
        )
        if parts and len(path) >= most:
            return path
        waiting += [((*path, key), part) for key, part in parts if isinstance(part, dict | list)]
    return None


def touches(one: Path, other: Path) -> bool:
    """Whether one of two paths lies within the other, so that a change to the one can change the other."""
    return all(a == b for a, b in zip(one, other, strict=False))
