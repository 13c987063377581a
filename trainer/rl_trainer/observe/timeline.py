"""Who did what when: spans recorded by every actor, collected into one Chrome trace with a row per actor.

`timeline.json` opens in Perfetto and in chrome://tracing. Times are wall-clock seconds since the epoch of
the recording machine, so rows of different nodes are as well aligned as the nodes' clocks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rl_api.errors import RLTrainError
from rl_trainer.storage.files import Closes, dump_json, write_atomic, writing

TIMELINE_FILE = "timeline.json"
DROPPED = "spans dropped"
MEASURED = "measured"
"""Name of a span whose arguments are numbers for the run's profile; no timeline shows it."""

ENVIRONMENT, JUDGE = "environment", "judge"
"""Names of spans in which answers wait for environments, and for models that score in workers of their own."""

_HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
_TAIL = b"\n]}\n"


class Span(NamedTuple):
    """Something an actor did: `start` and `end` in seconds since the epoch, `args` for who clicks on it."""

    actor: str
    name: str
    start: float
    end: float
    args: Mapping[str, Any] = {}


class SpanRecorder:
    """Collects the spans of one actor until the driver drains them. Cheap enough for every call; thread-safe.

    Spans of one actor should nest or follow each other: viewers draw one row per actor. Use one recorder
    (with its own name) per thread that works at the same time.
    """

    def __init__(self, actor_name: str, *, capacity: int = 10_000) -> None:
        """`capacity` bounds the spans kept between two drains; what is over is counted, not kept."""
        self.actor_name = actor_name
        self._capacity = capacity
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._dropped = 0

    @contextmanager
    def span(self, name: str, /, **args: Any) -> Iterator[dict[str, Any]]:
        """Record the time of the `with` block, also when it raises. Yields `args`; add to it inside."""
        start, began = time.time(), time.perf_counter()
        try:
            yield args
        finally:
            # The length from the steady clock: the wall clock may be set while the block runs.
            self.add(name, start, start + time.perf_counter() - began, **args)

    def add(self, name: str, start: float, end: float, /, **args: Any) -> None:
        """Record a span measured elsewhere; `start` and `end` in seconds since the epoch."""
        with self._lock:
            if len(self._spans) < self._capacity:
                self._spans.append(Span(self.actor_name, name, start, end, args))
            else:
                self._dropped += 1

    def measured(self, **numbers: Any) -> None:
        """Record numbers for the run's profile, which go with the spans."""
        now = time.time()
        self.add(MEASURED, now, now, **numbers)

    def drain(self) -> list[Span]:
        """Return the spans since the last call, oldest first, and forget them. They pickle."""
        with self._lock:
            spans, self._spans = self._spans, []
            dropped, self._dropped = self._dropped, 0
        if dropped:
            now = time.time()
            spans.append(Span(self.actor_name, DROPPED, now, now, {"count": dropped}))
        return spans


class TimelineWriter(Closes):
    """Collects spans of all actors into `timeline.json`, which is valid JSON after every `write`.

    The file is bounded: past `max_spans` the older half goes, and `dropped` counts it, also in the file.
    """

    def __init__(self, run_folder: Path | str, *, max_spans: int = 200_000) -> None:
        """Open the timeline of `run_folder`; an earlier one (a resumed run) is continued.

        Raises:
            RLTrainError: the file cannot be written.
        """
        self.path = Path(run_folder) / TIMELINE_FILE
        self.max_spans = max_spans
        self.dropped = 0
        self._rows: dict[str, int] = {}
        self._count = 0
        lines: list[str] = []
        if self.path.exists():
            self._rows, spans, self.dropped = _read(self.path)
            lines = [self._line(span) for span in spans]
        self._rewrite(lines)

    def write(self, spans: Iterable[Span]) -> None:
        """Append spans, of any actor and in any order.

        Raises:
            RLTrainError: the disk is full or the folder is gone.
        """
        if self._count > self.max_spans:
            self._drop_older_half()
        new = [line for span in spans if span.name != MEASURED for line in self._lines(span)]
        if not new:
            return
        with writing(self.path):
            # Over the old end of the file, in one write: a reader sees valid JSON before and after.
            separator = b",\n" if self._size > len(_HEAD) else b""
            block = separator + ",\n".join(new).encode()
            self._file.seek(self._size)
            self._file.write(block + _TAIL)
            self._file.flush()
            self._size += len(block)

    def close(self) -> None:
        """Close the file; it is complete."""
        self._file.close()

    def _lines(self, span: Span) -> list[str]:
        lines = [] if span.actor in self._rows else self._name_row(span.actor)
        self._count += 1
        return [*lines, self._line(span)]

    def _line(self, span: Span) -> str:
        more = {"args": {key: _plain(value) for key, value in span.args.items()}} if span.args else {}
        start, length = round(span.start * 1e6), max(0, round((span.end - span.start) * 1e6))
        return _event("X", span.name, tid=self._rows[span.actor], ts=start, dur=length, **more)

    def _name_row(self, actor: str, row: int | None = None) -> list[str]:
        self._rows[actor] = row = row or len(self._rows) + 1
        return [
            _event("M", "thread_name", tid=row, args={"name": actor}),
            _event("M", "thread_sort_index", tid=row, args={"sort_index": row}),
        ]

    def _drop_older_half(self) -> None:
        self._file.close()
        _, spans, _ = _read(self.path)
        kept = spans[len(spans) // 2 :]
        self.dropped += len(spans) - len(kept)
        self._rewrite([self._line(span) for span in kept])

    def _rewrite(self, spans: list[str]) -> None:
        self._count = len(spans)
        lines = [line for actor, row in self._rows.items() for line in self._name_row(actor, row)]
        if self.dropped:
            lines.append(_event("M", DROPPED, args={"count": self.dropped}))
        body = _HEAD + ",\n".join(lines + spans).encode()
        write_atomic(self.path, (body + _TAIL).decode())
        self._size = len(body)
        with writing(self.path):
            self._file = self.path.open("r+b")


def read_timeline(path: Path | str) -> list[Span]:
    """Return the spans of a `timeline.json` in the order written; none without a file, or past a torn end."""
    return _read(Path(path))[1]


def _event(kind: str, name: str, **fields: Any) -> str:
    """A line of the trace; times in microseconds."""
    return dump_json({"name": name, "ph": kind, "pid": 1, **fields})


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def _read(path: Path) -> tuple[dict[str, int], list[Span], int]:
    """Return rows by actor, spans, number dropped. One event per line, so a torn one is told apart."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}, [], 0
    except OSError as error:
        raise RLTrainError(f"{path}: cannot be read ({error.strerror})") from error
    rows: dict[str, int] = {}
    actors: dict[int, str] = {}
    spans: list[Span] = []
    dropped = 0
    for line in text.split("\n"):
        try:
            event = json.loads(line.rstrip(","))
            kind, name = event["ph"], event["name"]
            if kind == "M" and name == "thread_name":
                rows[event["args"]["name"]] = event["tid"]
                actors[event["tid"]] = event["args"]["name"]
            elif kind == "M" and name == DROPPED:
                dropped = event["args"]["count"]
            elif kind == "X":
                start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
                spans.append(Span(actors[event["tid"]], name, start, end, event.get("args", {})))
        except (ValueError, KeyError, TypeError):
            continue  # the frame around the events, or a line that a crash tore
    return rows, spans, dropped
