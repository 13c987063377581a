"""Live progress: one calm view that updates in place, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_api.printable import printable, printable_lines
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.observe.texts import duration, ended, number, words
from rl_trainer.storage.files import Closes

# The closing reward is a mean over so many steps: one step says little.
CLOSING_STEPS = 10
_LINE_SECONDS = 1.0
_BLOCKS = "▁▂▃▄▅▆▇█"


class Console(Closes):
    """What a run says while it goes on. Every method may be called at any time, from the driver's thread.

    On a terminal there is one live view; messages scroll above it. Elsewhere (a file, a pipe, `TERM=dumb`, an
    encoding without block characters) steps are plain ASCII lines, at most one a second, plus
    every phase, evaluation, message and warning. `NO_COLOR` is honoured. A closed pipe silences the output
    and never stops a run.
    """

    def __init__(
        self,
        name: str,
        *,
        max_steps: int,
        target: float | None = None,
        buffer_capacity: int | None = None,
        kept: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`target` is `stop.targetReward`; `buffer_capacity` in groups; `kept`: whether the run folder stays, else its
        report is not named; `stream` is stdout unless given."""
        self._kept = kept
        self._stream: TextIO | None = stream or sys.stdout
        self._clock = clock
        self._last_line = -math.inf
        self._held_back: str | None = None
        self._view = View(name, max_steps, target, buffer_capacity, clock)
        self._rich = RichConsole(
            file=self._stream, highlight=False, markup=False, emoji=False, soft_wrap=False
        )
        self._live: Live | None = None
        if can_draw(self._rich):
            self._live = Live(
                get_renderable=lambda: self._view,
                console=self._rich,
                refresh_per_second=4,
                transient=True,
                vertical_overflow="crop",
            )
            self._live.start()

    def phase(self, text: str) -> None:
        """Say what the run is doing now: `starting Ray`, `training`, `checkpoint`, ..."""
        changed = text != self._view.phase
        self._view.phase = printable(text)
        # Plain output follows the start of a run; once steps are listed, they say that it trains.
        if changed and not self._live and self._view.record is None:
            self._line(text)

    def warm_start(self, step: int, max_steps: int, loss: float, score: float | None = None) -> None:
        """Show a step of the supervised warm start; `score` is the sampled held-out score, when taken."""
        self._view.phase, self._view.warm_start = "warm start", (step, max_steps, loss, score)
        parts = [f"warm start {step}/{max_steps}", f"loss {number(loss, 3)}"]
        parts += [f"score {_score(score)}"] if score is not None else []
        self._throttled("  ".join(parts), always=score is not None)

    def step(self, record: StepRecord, eta: float | None = None) -> None:
        """Show a finished step; `eta` is the time left in seconds."""
        self._view.warm_start = None
        self._view.add(record, eta)
        self._throttled(self._view.line())

    def evaluation(self, step: int, score: float) -> None:
        """Show the held-out score after `step` steps."""
        self._view.scores.append((step, score))
        if not self._live:
            self._flush_held_back()
            self._line(f"step {step}  held-out {_score(score)}")

    def message(self, text: str) -> None:
        """Print a sentence that stays."""
        self._print(text)

    def warning(self, text: str) -> None:
        """Print a sentence that stays and that someone should read."""
        self._print(f"warning: {text}", style="yellow")

    def finish(self, summary: Mapping[str, Any], report: Path | str | None = None) -> None:
        """End the view with the result: what `write_summary` returned, and the page to open."""
        self._flush_held_back()
        self.close()
        rows = closing_rows(summary, report if self._kept else None)
        if self._encodable("\u2192") == "\u2192":
            rows = [(label, text.replace("->", "\u2192")) for label, text in rows]
        self._print(headline(summary), style="bold")
        for label, text in rows:
            self._print(f"  {label:<10}{text}")

    def close(self) -> None:
        """Leave the terminal as it was. Safe to call twice; messages can still be printed."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):
                live.stop()

    def _throttled(self, text: str, *, always: bool = False) -> None:
        if self._live:
            return
        now = self._clock()
        if not always and now - self._last_line < _LINE_SECONDS:
            self._held_back = text
            return
        self._last_line = now
        self._line(text)

    def _flush_held_back(self) -> None:
        """Print the newest step that the throttle kept back, so that the last line is the last step."""
        text, self._held_back = self._held_back, None
        if text is not None and not self._live:
            self._line(text)

    def _print(self, text: str, style: str = "") -> None:
        if self._rich.is_terminal and self._stream is not None:
            with self._guarded():
                self._rich.print(Text(self._encodable(text), style=style), soft_wrap=True)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        if self._stream is not None:
            self._held_back = None
            with self._guarded():
                self._stream.write(self._encodable(text) + "\n")
                self._stream.flush()

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        """The reader of a pipe may leave (`| head`): training goes on without a word."""
        try:
            yield
        except (OSError, ValueError):
            self._stream = None

    def _encodable(self, text: str) -> str:
        """What the stream can take; a reward or a program that is quoted does not steer the terminal."""
        encoding = self._rich.encoding
        return printable_lines(text).encode(encoding, "replace").decode(encoding)


@dataclass
class View:
    """The state of the live view and how it looks; drawn again several times a second."""

    name: str
    max_steps: int
    target: float | None
    buffer_capacity: int | None
    clock: Callable[[], float]
    phase: str = "starting"
    warm_start: tuple[int, int, float, float | None] | None = None
    record: StepRecord | None = None
    eta: float | None = None
    rewards: list[float] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, record: StepRecord, eta: float | None) -> None:
        """Take in a finished step."""
        self.record, self.eta = record, eta
        if math.isfinite(record.reward_mean):
            self.rewards.append(record.reward_mean)

    def line(self) -> str:
        """Return the last step as a plain line, without what is not known: `step 12/100  reward 0.52 ...`."""
        record = self.record
        assert record is not None
        parts = [f"step {record.step}/{self.max_steps}", f"reward {_score(record.reward_mean)}"]
        parts += [f"{label} {text}" for label, text in self._facts(record)]
        parts += [f"ETA {duration(self.eta)}"] if self.eta is not None else []
        return "  ".join(parts).replace("\u2009", " ").replace("\u2013", "-").replace("\u2212", "-")

    def __rich_console__(self, console: RichConsole, options: Any) -> Any:
        yield self.render(options.max_width)

    def render(self, width: int) -> RenderableType:
        """Return the view for a terminal `width` columns wide."""
        width = max(20, min(width, 110))
        head = Table.grid(expand=False, padding=0)
        head.add_column(width=width - 13, no_wrap=True, overflow="ellipsis")
        head.add_column(width=13, justify="right", no_wrap=True)
        elapsed = duration(math.floor(self.clock() - self._began)).replace(".0", "")
        head.add_row(
            Text.assemble((self.name, "bold"), "  ", (self.phase, "cyan")), Text(elapsed, style="dim")
        )
        rows: list[RenderableType] = [Text(), head, self._bar(width)]
        pairs = self._pairs(width)
        columns = 2 if width >= 76 and len(pairs) > 2 else 1
        body = Table.grid(padding=(0, 1))
        for _ in range(columns):
            body.add_column(width=9, style="dim", no_wrap=True)
            body.add_column(width=(width - 13 * columns + 1) // columns, no_wrap=True, overflow="ellipsis")
        for start in range(0, len(pairs), columns):
            body.add_row(*(cell for pair in pairs[start : start + columns] for cell in pair))
        return Group(*rows, body) if pairs else Group(*rows)

    def _bar(self, width: int) -> RenderableType:
        step = self.record.step if self.record else 0
        done, total = (self.warm_start[0], self.warm_start[1]) if self.warm_start else (step, self.max_steps)
        label = f"{done}/{total}"
        if self.eta is not None and not self.warm_start:
            label += f"  ETA {duration(self.eta)}"
        row = Table.grid(padding=0)
        row.add_column(width=max(10, width - len(label) - 2))
        row.add_column(width=len(label) + 2, justify="right", no_wrap=True)
        bar = ProgressBar(total=max(1, total), completed=done, complete_style="cyan", finished_style="green")
        row.add_row(bar, label)
        return row

    def _pairs(self, width: int) -> list[tuple[str, RenderableType]]:
        if self.warm_start:
            _, _, loss, score = self.warm_start
            pairs: list[tuple[str, RenderableType]] = [("loss", number(loss, 3))]
            return pairs + ([("score", _score(score))] if score is not None else [])
        pairs = []
        if self.record:
            room = max(8, (width // 2 if width >= 76 else width) - 22)
            mean = _score(self.record.reward_mean)
            pairs.append(
                ("reward", Text.assemble((f"{mean:<7}", "bold"), (sparkline(self.rewards, room), "cyan")))
            )
        if self.scores:
            pairs.append(("held-out", self._heldout()))
        if self.record:
            pairs += self._facts(self.record)
        return pairs

    def _heldout(self) -> Text:
        text = Text.assemble((_score(self.scores[-1][1]), "bold"))
        if len(self.scores) > 1:
            text.append(f" from {_score(self.scores[0][1])}", style="dim")
        if self.target is not None:
            text.append(f", target {_score(self.target)}", style="dim")
        return text

    def _facts(self, record: StepRecord) -> list[tuple[str, str]]:
        capacity = f"/{self.buffer_capacity}" if self.buffer_capacity else ""
        facts = [
            ("length", record.response_length_mean, ""),
            ("speed", record.tokens_per_second, " tokens/s"),
            ("buffer", record.buffer_fill, capacity),
            ("staleness", record.staleness_max, ""),
        ]
        shown = [(label, number(value, 1) + unit) for label, value, unit in facts if math.isfinite(value)]
        dropped = sum(record.groups_dropped.values())
        shown += [("dropped", f"{dropped:,}")] if dropped else []
        return shown + ([("skipped", f"{record.skipped_steps:,}")] if record.skipped_steps else [])


def sparkline(values: Sequence[float], width: int) -> str:
    """Return `values` as at most `width` block characters, from their minimum to their maximum.

    More values than characters are averaged in equal parts; equal values are drawn at half height.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [position * len(values) // count for position in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high - low < 1e-12:
        return _BLOCKS[3] * count
    return "".join(_BLOCKS[min(7, int((mean - low) / (high - low) * 8))] for mean in means)


def headline(summary: Mapping[str, Any]) -> str:
    """Return the sentence a run ends with."""
    text = ended(summary.get("stop_reason") or "stopped")
    steps = summary.get("steps", 0)
    return f"{text} after {steps:,} step{'s' * (steps != 1)}, {duration(summary.get('wall_seconds'))}."


def closing_rows(summary: Mapping[str, Any], report: Path | str | None) -> list[tuple[str, str]]:
    """Return (label, text) lines below the headline."""
    rows = []
    start, end = summary.get("heldout_start"), summary.get("heldout_end")
    if start is not None and end is not None:
        rows.append(("held-out", f"{_score(start)} -> {_score(end)}"))
    rewards = [value for value in summary.get("reward_curve", ()) if value is not None]
    if rewards:
        first, last = rewards[:CLOSING_STEPS], rewards[-CLOSING_STEPS:]
        rows.append(("reward", f"{_score(sum(first) / len(first))} -> {_score(sum(last) / len(last))}"))
    speed = summary.get("completion_tokens_per_second")
    if speed:
        rows.append(
            ("speed", f"{number(speed, 1)} tokens/s, {number(summary['samples_per_second'], 1)} answers/s")
        )
    dropped = {reason: count for reason, count in summary.get("groups_dropped", {}).items() if count}
    lost = ", ".join(f"{words(reason)} {count:,}" for reason, count in dropped.items())
    lost = f"; dropped {sum(dropped.values()):,} ({lost})" if dropped else ", none dropped"
    if summary.get("stop_reason") != "programEnded" or summary.get("groups_trained"):
        rows.append(("groups", f"{summary.get('groups_trained', 0):,} trained{lost}"))
    if report is not None:
        here = Path.cwd()
        inside = Path(report).is_relative_to(here)
        rows.append(("report", str(Path(report).relative_to(here) if inside else report)))
    return rows


def _score(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}"


def can_draw(console: RichConsole) -> bool:
    """Whether there is a terminal that a live view can be drawn on."""
    if not console.is_terminal or console.is_dumb_terminal or os.environ.get("RLTRAIN_PLAIN"):
        return False
    try:
        (_BLOCKS + "━╺").encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
