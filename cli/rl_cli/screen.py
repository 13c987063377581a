"""How rows are shown: one view that updates in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_api.printable import printable
from rl_cli.view import SILENT_SECONDS, Row, age, changed, facts, fraction, length, line

_STYLES: Final = {
    "Training": "cyan",
    "WarmStart": "cyan",
    "Evaluating": "cyan",
    "Checkpointing": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Stopping": "yellow",
    "Suspended": "yellow",
}
_NUMBERS: Final = {
    "STEP": "step",
    "REWARD": "reward",
    "HELD-OUT": "held-out",
    "TOKENS/S": "speed",
    "BUFFER": "buffer",
    "STALE": "staleness",
    "SAMPLERS": "samplers",
    "ATTEMPT": "attempt",
    "CKPT": "checkpoint",
}
"""Columns of numbers, and which fact each shows."""

_GIVE_WAY: Final = ("STALE", "BUFFER", "CKPT", "AGE", "HELD-OUT", "ATTEMPT", "TOKENS/S", "SAMPLERS")
"""Columns that a narrow terminal does without, the first one first."""

_GAP: Final = 2
_REASON: Final = 32
"""Columns that a reason gets at least."""

_BAR: Final = "━╺▁█"


class Screen:
    """Shows the rows of a watch. On a terminal the last view stays when it ends."""

    def __init__(self, name: str | None, namespace: str | None, stream: TextIO | None = None) -> None:
        """`name` is the run that is watched, `namespace` the one whose runs are; None: all of them."""
        self._name, self._namespace = name, namespace
        self._stream = stream or sys.stdout
        self._rows: list[Row] = []
        self._history: dict[str, tuple[int, list[float]]] = {}
        self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        if _can_draw(self._stream):
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                refresh_per_second=2,
                vertical_overflow="ellipsis",
            )

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[Row]) -> None:
        """Show these runs instead of those before."""
        before = {one.key: one for one in self._rows}
        self._rows = sorted(rows, key=lambda one: (one.over, one.key))
        for one in self._rows:
            self._remember(one)
            if self._live is None and changed(before.get(one.key), one):
                self._write(line(one, with_namespace=self._namespace is None))
        if self._live is None and self._name is None:
            for key in before.keys() - {one.key for one in rows}:
                namespace, name = key
                self._write(f"{namespace}/{name}  deleted" if self._namespace is None else f"{name}  deleted")

    def say(self, sentence: str) -> None:
        """Print a sentence that stays, to standard error."""
        sentence = printable(sentence)
        if self._live is not None:
            self._console.print(sentence, style="yellow")
        else:
            print(f"rltrain: {sentence}", file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()

    def _remember(self, one: Row) -> None:
        """Keep the rewards seen, for the curve."""
        step, rewards = self._history.get(one.uid, (-1, []))
        if one.reward is not None and one.step is not None and one.step != step:
            self._history[one.uid] = (one.step, [*rewards, one.reward])

    def _draw(self) -> RenderableType:
        now, width = datetime.now(UTC), self._console.width
        if self._name is not None:
            rewards = {uid: values for uid, (_, values) in self._history.items()}
            return one_run(self._rows[0], rewards, now, width) if self._rows else ""
        return all_runs(self._rows, now, width, with_namespace=self._namespace is None)


def one_run(shown: Row, rewards: Mapping[str, Sequence[float]], now: datetime, width: int) -> RenderableType:
    """The view of one run, for a terminal `width` columns wide."""
    width = max(20, min(width, 110))
    head = Table.grid(expand=False, padding=0)
    head.add_column(width=width - 16, no_wrap=True, overflow="ellipsis")
    head.add_column(width=16, justify="right", no_wrap=True)
    title = Text.assemble(
        (shown.name, "bold"),
        "  ",
        (shown.phase, _STYLES.get(shown.phase, "")),
        (f"  {shown.namespace}", "dim"),
    )
    head.add_row(title, Text(age(shown.created, now), style="dim"))
    parts: list[RenderableType] = [Text(), head]
    if shown.step is not None and shown.max_steps:
        parts.append(_bar(shown, width))
    pairs = [(label, text) for label, text in facts(shown).items() if label not in ("step", "ETA", "-")]
    if shown.learners is not None and not shown.over:
        pairs.append(("learners", fraction(*shown.learners)))
    body = Table.grid(padding=(0, 1))
    columns = 2 if width >= 76 and len(pairs) > 2 else 1
    for _ in range(columns):
        body.add_column(width=10, style="dim", no_wrap=True)
        body.add_column(width=(width - 14 * columns) // columns, no_wrap=True, overflow="ellipsis")
    cells = [(label, _cell(label, text, shown, rewards, width // columns - 24)) for label, text in pairs]
    for start in range(0, len(cells), columns):
        body.add_row(*(cell for pair in cells[start : start + columns] for cell in pair))
    if cells:
        parts.append(body)
    if shown.reason:
        parts.append(Text(shown.reason, style="red" if shown.phase == "Failed" else "yellow"))
    silent = (now - shown.updated).total_seconds() if shown.updated is not None else 0.0
    if silent > SILENT_SECONDS and shown.phase in ("Training", "WarmStart", "Evaluating"):
        parts.append(Text(f"the driver's last word is {length(silent)} old", style="yellow"))
    parts += [Text(text, style="dim") for text in shown.ended[-4:] if not shown.over or len(shown.ended) > 1]
    return Group(*parts)


def all_runs(rows: Sequence[Row], now: datetime, width: int, *, with_namespace: bool) -> RenderableType:
    """The table of all runs, for a terminal `width` columns wide: what matters less gives way to what matters more."""
    cells = {
        **({"NAMESPACE": [one.namespace for one in rows]} if with_namespace else {}),
        "NAME": [one.name for one in rows],
        "PHASE": [one.phase for one in rows],
        **{title: _column(rows, label) for title, label in _NUMBERS.items()},
        "AGE": [age(one.created, now) for one in rows],
    }
    reasons = any(one.reason for one in rows)
    widths = {title: max(map(len, (title, *column))) for title, column in cells.items()}
    for title in _GIVE_WAY:
        room = width - sum(size + _GAP for size in widths.values())
        if room >= (_REASON if reasons else -_GAP):
            break
        widths.pop(title)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, size in widths.items():
        justify: Literal["left", "right"] = "right" if title in _NUMBERS else "left"
        table.add_column(title, no_wrap=True, overflow="ellipsis", justify=justify, max_width=size)
    if reasons:
        table.add_column("REASON", no_wrap=True, overflow="ellipsis", ratio=1)
        table.expand = True
    for index, one in enumerate(rows):
        shown: list[RenderableType] = [cells[title][index] for title in widths]
        shown[list(widths).index("PHASE")] = Text(one.phase, style=_STYLES.get(one.phase, ""))
        table.add_row(*shown, Text(one.reason, style="red" if one.phase == "Failed" else "yellow"))
    return table


def _column(rows: Sequence[Row], label: str) -> list[str]:
    return [facts(one).get(label, "").removesuffix(" tokens/s") for one in rows]


def _bar(shown: Row, width: int) -> RenderableType:
    label = fraction(shown.step, shown.max_steps)
    label += f"  ETA {length(shown.eta)}" if shown.eta is not None and not shown.over else ""
    bar = Table.grid(padding=0)
    bar.add_column(width=max(10, width - len(label) - 2))
    bar.add_column(width=len(label) + 2, justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(
            total=max(1, shown.max_steps or 1),
            completed=shown.step or 0,
            complete_style="cyan",
            finished_style="green",
        ),
        label,
    )
    return bar


def _cell(
    label: str, text: str, shown: Row, rewards: Mapping[str, Sequence[float]], room: int
) -> RenderableType:
    from rl_trainer.observe.console import sparkline

    if label == "reward":
        curve = sparkline(rewards.get(shown.uid, ()), max(8, room))
        return Text.assemble((f"{text:<7}", "bold"), (curve, "cyan"))
    if label == "held-out" and shown.target is not None:
        return Text.assemble((text, "bold"), (f", target {shown.target:.2f}", "dim"))
    if label == "checkpoint" and shown.checkpoint_uri:
        return Text.assemble(text, (f"  {shown.checkpoint_uri}", "dim"))
    return Text(text)


def _can_draw(stream: TextIO) -> bool:
    if not stream.isatty() or os.environ.get("RLTRAIN_PLAIN") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        _BAR.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
