"""Data nested so deeply that Python's functions, most of which are recursive, give up: cut where it is read. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

DEEPEST: Final = 128
"""Levels that are kept: more than a run may have (`rl_api.validation`), so that what was cut is refused there."""

_MOST_DIGITS: Final = 640
"""Python refuses to read whole numbers of more than 4300; 640 it reads however it was started."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def loads(data: bytes | str) -> Any:
    """JSON, whatever somebody has put into it: what lies too deep is null, what is no text is replaced, and a number with
    more digits than can be read is infinite.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(data)
    except (RecursionError, ValueError):
        raw = data if isinstance(data, bytes) else data.encode(errors="replace")
        return json.loads(_cut(raw).decode(errors="replace"), parse_int=_whole)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _cut(data: bytes) -> bytes:
    """JSON text without what lies deeper than `DEEPEST` levels."""
    parts: list[bytes] = []
    level, kept = 0, 0
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text in (b"[", b"{"):
            level += 1
            if level == DEEPEST + 1:
                parts += data[kept : token.start()], b"null"
        elif text in (b"]", b"}"):
            if level == DEEPEST + 1:
                kept = token.end()
            level -= 1
    return b"".join((*parts, data[kept:]))


def shallow(value: Any) -> Any:
    """Plain data as it is, or a copy in which what lies deeper than `DEEPEST` levels is null."""
    cut = _copy(value, 1)
    return value if cut == value else cut


def _copy(value: Any, level: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if level > DEEPEST:
        return None
    if isinstance(value, list):
        return [_copy(part, level + 1) for part in value]
    return {key: _copy(part, level + 1) for key, part in value.items()}
