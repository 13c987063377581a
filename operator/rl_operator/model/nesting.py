"""Data nested so deeply that Python's functions, most of which are recursive, give up: cut where it is read. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

DEEPEST: Final = 128
"""Levels that are kept: more than a run may have (`rl_api.validation`), so that what was cut is refused there."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def loads(data: bytes | str) -> Any:
    """JSON. Where it is nested too deeply to be read, what lies too deep is null.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_cut(data if isinstance(data, bytes) else data.encode(errors="replace")))


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
    waiting = [(value, 1)]
    while waiting:
        one, level = waiting.pop()
        parts = one.values() if isinstance(one, dict) else one
        inner = [part for part in parts if isinstance(part, dict | list)]
        if inner and level == DEEPEST:
            return _copy(value, 1)
        waiting += [(part, level + 1) for part in inner]
    return value


def _copy(value: Any, level: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if level > DEEPEST:
        return None
    if isinstance(value, list):
        return [_copy(part, level + 1) for part in value]
    return {key: _copy(part, level + 1) for key, part in value.items()}
