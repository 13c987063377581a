"""How far a job is, on a terminal or in plain lines."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_api.printable import printable
from rl_trainer.observe.console import can_draw
from rl_trainer.observe.texts import duration, number
from rl_trainer.storage.files import Closes

_LINE_SECONDS = 5.0
# Speed is that of the last so many seconds.
_WINDOW_SECONDS = 30.0


class Meter:
    """Rows done of `total`, and from them tokens per second and the time that is left."""

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self.tokens = total, done, 0
        self._clock = clock
        self._seen: deque[tuple[float, int, int]] = deque([(clock(), done, 0)])

    def update(self, done: int, tokens: int) -> None:
        """Rows done and tokens so far; they never become fewer."""
        self.done, self.tokens = max(self.done, done), max(self.tokens, tokens)
        self._seen.append((self._clock(), self.done, self.tokens))
        while len(self._seen) > 2 and self._seen[1][0] < self._seen[-1][0] - _WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def speed(self) -> float:
        """Tokens per second of late; not a number: nothing is known."""
        seconds = self._seen[-1][0] - self._seen[0][0]
        return (self.tokens - self._seen[0][2]) / seconds if seconds > 0 else math.nan

    @property
    def eta(self) -> float | None:
        """Seconds left; None: nothing is known."""
        seconds, rows = self._seen[-1][0] - self._seen[0][0], self.done - self._seen[0][1]
        return (self.total - self.done) * seconds / rows if rows else None

    def line(self) -> str:
        """All of it in plain ASCII."""
        parts = [f"{self.done:,} of {self.total:,} rows"]
        parts += [f"{number(self.speed, 1)} tokens/s"] if self.tokens and math.isfinite(self.speed) else []
        parts += [f"{duration(self.eta)} left"] if self.eta is not None and self.done < self.total else []
        return "  ".join(parts).replace("\u2009", " ")


class Progress(Closes):
    """Shows a meter: one view that updates in place on a terminal, elsewhere a line every few seconds.

    Args:
        name: of the policy.
        meter: what is shown.
        plain: lines also on a terminal.
        clock: seconds.
    """

    def __init__(
        self, name: str, meter: Meter, *, plain: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._meter, self._clock = printable(name, 60), meter, clock
        self._last = clock()
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._live: Live | None = None
        if not plain and can_draw(console):
            self._live = Live(
                get_renderable=self._render, console=console, refresh_per_second=4, transient=True
            )
            self._live.start()

    def show(self) -> None:
        """The meter has moved."""
        if self._live is None and self._clock() - self._last >= _LINE_SECONDS:
            self._last = self._clock()
            print(self._meter.line(), flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _render(self) -> RenderableType:
        meter: Any = self._meter
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(
            total=max(1, meter.total),
            completed=meter.done,
            width=40,
            complete_style="cyan",
            finished_style="green",
        )
        row.add_row(Text(self._name, style="bold"), bar)
        return Group(row, Text(meter.line(), style="dim"))
