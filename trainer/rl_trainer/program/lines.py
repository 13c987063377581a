"""Lines that a program writes about its progress, as step records and events. Pure, but for `Tail`, which reads them.

A line is a JSON object with `step` (a whole number > 0) and any fields of `StepRecord`, or with `step`, `event` and what
belongs to the event. Other fields are left alone. Lines of verl's log (an object `data` beside `step`) are taken as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rl_api.paths import too_deep
from rl_api.progress import LONGEST_URI, is_address
from rl_api.status_fields import MOST
from rl_trainer.observe.metrics import COUNTS, FIELDS, FLOATS, NAN, StepRecord
from rl_trainer.program.verl import from_verl

_LONGEST_LINE: Final = 1 << 20
_DEEPEST: Final = 16


class Event(NamedTuple):
    """Something that is not a step."""

    kind: str
    step: int
    fields: dict[str, Any]


class BadLine(NamedTuple):
    """A line that says nothing, and why, as a part of a sentence."""

    why: str


Line = StepRecord | Event | BadLine


def parse_line(text: str, *, now: float, wall_seconds: float) -> Line:
    """What one line says.

    Args:
        text: the line.
        now: time of a step that does not say its own, seconds since the epoch.
        wall_seconds: length of such a step, likewise.
    """
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return BadLine("it is no JSON object")
    if not isinstance(line, dict):
        return BadLine("it is no JSON object")
    if too_deep(line, _DEEPEST):
        return BadLine(f"it is nested in more than {_DEEPEST} levels")
    if isinstance(line.get("data"), dict):
        line = from_verl(line)
    step = line.get("step")
    event = line.get("event")
    least = 1 if event is None else 0
    if type(step) is not int or not least <= step <= MOST:
        return BadLine(f"step is {step!r:.40}, allowed: a whole number from {least} to {MOST}")
    if event is not None:
        return _event(event, step, {key: line[key] for key in line.keys() - {"event", "step", "time"}})
    fields: dict[str, Any] = {"time": now, "wall_seconds": wall_seconds, "reward_mean": NAN}
    for name in FIELDS:
        value = line.get(name)
        if value is None:
            continue
        if name in FLOATS or name == "heldout_score":
            number = _number(value)
            if number is None:
                return BadLine(f"{name} is {value!r:.40}, allowed: a number or null")
            if name not in ("time", "wall_seconds") or math.isfinite(number):
                fields[name] = number
        elif name in COUNTS:
            if type(value) is not int or not 0 <= value <= MOST:
                return BadLine(f"{name} is {value!r:.40}, allowed: a whole number from 0 to {MOST}")
            fields[name] = value
    return StepRecord(step=step, **fields)


def _event(kind: object, step: int, fields: dict[str, Any]) -> Event | BadLine:
    if not isinstance(kind, str) or not kind:
        return BadLine(f"event is {kind!r:.40}, allowed: text, not empty")
    score, path = fields.get("score"), fields.get("path")
    if kind == "evaluation" and type(score) in (int, float):
        number = _number(score)
        if number is None or not math.isfinite(number):
            return BadLine(f"score is {score!r:.40}, allowed: a number")
    if kind == "checkpoint" and path and not is_address(path):
        most = f"text of at most {LONGEST_URI} bytes, without control characters"
        return BadLine(f"path is {path!r:.40}, allowed: {most}")
    return Event(kind, step, fields)


def _number(value: object) -> float | None:
    """A number, NaN and infinity among them, as a float; None: it is none, or beyond all floats."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


class Tail:
    """Reads the lines that are added to a file, whole ones only."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """`path` need not be there yet; lines before `position`, in bytes, are passed over."""
        self._path, self._position, self._rest = path, position, b""
        self._ahead = 0  # bytes of whole lines that are read, and not yet taken

    @property
    def position(self) -> int:
        """Bytes of the file up to the end of the last line that was taken."""
        return self._position - len(self._rest) - self._ahead

    def read(self) -> Iterator[str]:
        """The lines since the last call, one by one: all are to be taken. Of a file that has become shorter, those from its
        beginning on."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._position:
                    self._position, self._rest = 0, b""
                file.seek(self._position)
                content = file.read()
        except OSError:
            return
        self._position += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        self._ahead = sum(len(line) + 1 for line in lines)
        for line in lines:
            self._ahead -= len(line) + 1
            if line.strip():
                yield line.decode(errors="replace")
