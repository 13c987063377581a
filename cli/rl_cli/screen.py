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
from rl_cli.service_view import ServiceRow, shares
from rl_cli.view import SILENT_SECONDS, Row, Shown, age, changed, fraction, length, line

_STYLES: Final = {
    "Training": "cyan",
    "WarmStart": "cyan",
    "Evaluating": "cyan",
    "Checkpointing": "cyan",
    "Succeeded": "green",
    "Serving": "green",
    "Updating": "cyan",
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
"""Columns of numbers of runs, and which fact each shows."""

_GIVE_WAY: Final = ("STALE", "BUFFER", "CKPT", "AGE", "HELD-OUT", "ATTEMPT", "TOKENS/S", "SAMPLERS")
"""Columns of runs that a narrow terminal does without, the first one first."""

_RIGHT: Final = (*_NUMBERS, "TRAFFIC", "REPLICAS")
_SERVICES_GIVE_WAY: Final = ("AGE", "TRAFFIC", "LAST", "VERSION", "REPLICAS", "CANDIDATE")

_GAP: Final = 2
_REASON: Final = 32
"""Columns that a reason gets at least."""

_BAR: Final = "━╺▁█"


class Screen:
    """Shows the rows of a watch. On a terminal the last view stays when it ends."""

    def __init__(self, name: str | None, namespace: str | None, stream: TextIO | None = None) -> None:
        """`name` is what is watched, `namespace` the one in which everything is; None: all of them."""
        self._name, self._namespace = name, namespace
        self._stream = stream or sys.stdout
        self._rows: list[Shown] = []
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

    def show(self, rows: Sequence[Shown]) -> None:
        """Show these objects instead of those before."""
        before = {one.key: one for one in self._rows}
        self._rows = sorted(rows, key=lambda one: (one.over, one.key))
        for one in self._rows:
            if isinstance(one, Row):
                self._remember(one)
            if self._live is None and changed(before.get(one.key), one):
                self._write(line(one, with_namespace=self._namespace is None))
        if self._live is None and self._name is None:
            for key in before.keys() - {one.key for one in rows}:
                self._write(f"{'/'.join(key) if self._namespace is None else key[1]}  deleted")

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
        now, width, rows = datetime.now(UTC), self._console.width, self._rows
        runs = [one for one in rows if isinstance(one, Row)]
        services = [one for one in rows if isinstance(one, ServiceRow)]
        if self._name is not None:
            rewards = {uid: values for uid, (_, values) in self._history.items()}
            found = [one_run(one, rewards, now, width) for one in runs]
            return next(iter([*found, *(one_service(one, now, width) for one in services)]), "")
        everywhere = self._namespace is None
        tables = [all_runs(runs, now, width, with_namespace=everywhere)] if runs or not services else []
        if services:
            tables += [Text()] if tables else []
            tables.append(all_services(services, now, width, with_namespace=everywhere))
        return Group(*tables)


def one_run(shown: Row, rewards: Mapping[str, Sequence[float]], now: datetime, width: int) -> RenderableType:
    """The view of one run, for a terminal `width` columns wide."""
    width = _wide(width)
    parts: list[RenderableType] = [Text(), _head(shown, now, width)]
    if shown.step is not None and shown.max_steps:
        parts.append(_bar(shown, width))
    facts = shown.facts()
    whole = [(label, facts.pop(label)) for label in ("placement", "wanted") if label in facts]
    pairs = [(label, text) for label, text in facts.items() if label not in ("step", "ETA", "-")]
    if shown.learners is not None and not shown.over:
        pairs.append(("learners", fraction(*shown.learners)))
    pairs += shown.use().items()
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
    if whole:  # too long for a column
        below = Table.grid(padding=(0, 1))
        below.add_column(width=10, style="dim", no_wrap=True)
        below.add_column(max_width=width - 14)
        for pair in whole:
            below.add_row(*pair)
        parts.append(below)
    if shown.reason:
        parts.append(_reason(shown))
    silent = (now - shown.updated).total_seconds() if shown.updated is not None else 0.0
    if silent > SILENT_SECONDS and shown.phase in ("Training", "WarmStart", "Evaluating"):
        parts.append(Text(f"the driver's last word is {length(silent)} old", style="yellow"))
    parts += [Text(text, style="dim") for text in shown.ended[-4:] if not shown.over or len(shown.ended) > 1]
    return Group(*parts)


def one_service(shown: ServiceRow, now: datetime, width: int) -> RenderableType:
    """The view of one service, for a terminal `width` columns wide."""
    width = _wide(width)
    body = Table.grid(padding=(0, 1))
    body.add_column(width=10, style="dim", no_wrap=True)
    body.add_column(width=max(6, width - 12), overflow="fold")
    known = shown.facts() | {"traffic": shares(shown.traffic)}
    if shown.version:
        step = f"  step {shown.step}" if shown.step is not None else ""
        since = f", for {age(shown.since, now)}" if shown.since is not None else ""
        body.add_row("version", Text.assemble((shown.version, "bold"), (f"{step}{since}", "dim")))
    for label in ("candidate", "traffic", "replicas"):
        if known.get(label):
            body.add_row(label, Text(known[label]))
    if shown.last is not None:
        ago = f"  {age(shown.last.time, now)} ago" if shown.last.time is not None else ""
        body.add_row("last", Text.assemble(str(shown.last), (ago, "dim")))
    for endpoint in shown.endpoints:
        body.add_row("endpoint", Text(endpoint))
    parts: list[RenderableType] = [Text(), _head(shown, now, width), body]
    if shown.reason:
        parts.append(_reason(shown))
    return Group(*parts)


def all_runs(rows: Sequence[Row], now: datetime, width: int, *, with_namespace: bool) -> RenderableType:
    """The table of all runs, for a terminal `width` columns wide: what matters less gives way to what matters more."""
    columns = {title: [_fact(one, label) for one in rows] for title, label in _NUMBERS.items()}
    return _table(rows, "NAME", columns, _GIVE_WAY, now, width, with_namespace=with_namespace)


def all_services(
    rows: Sequence[ServiceRow], now: datetime, width: int, *, with_namespace: bool
) -> RenderableType:
    """The table of all services, for a terminal `width` columns wide."""
    columns = {
        "VERSION": [one.version for one in rows],
        "STEP": [_fact(one, "step") for one in rows],
        "CANDIDATE": [
            _short(one.candidate.step, one.candidate.state) if one.candidate else "" for one in rows
        ],
        "TRAFFIC": [f"{one.share}%" if one.share is not None else "" for one in rows],
        "REPLICAS": [_fact(one, "replicas") for one in rows],
        "LAST": [_short(one.last.step, one.last.result) if one.last else "" for one in rows],
    }
    return _table(rows, "SERVICE", columns, _SERVICES_GIVE_WAY, now, width, with_namespace=with_namespace)


def _table(
    rows: Sequence[Shown],
    what: str,
    columns: Mapping[str, list[str]],
    give_way: Sequence[str],
    now: datetime,
    width: int,
    *,
    with_namespace: bool,
) -> RenderableType:
    """A line for each row under the title `what`; of `columns` those of `give_way` are left out where there is no room."""
    cells = {
        **({"NAMESPACE": [one.namespace for one in rows]} if with_namespace else {}),
        what: [one.name for one in rows],
        "PHASE": [one.phase for one in rows],
        **columns,
        "AGE": [age(one.created, now) for one in rows],
    }
    reasons = any(one.reason for one in rows)
    widths = {title: max(map(len, (title, *column))) for title, column in cells.items()}
    for title in give_way:
        room = width - sum(size + _GAP for size in widths.values())
        if room >= (_REASON if reasons else -_GAP):
            break
        widths.pop(title)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, size in widths.items():
        justify: Literal["left", "right"] = "right" if title in _RIGHT else "left"
        table.add_column(title, no_wrap=True, overflow="ellipsis", justify=justify, max_width=size)
    if reasons:
        table.add_column("REASON", no_wrap=True, overflow="ellipsis", ratio=1)
        table.expand = True
    for index, one in enumerate(rows):
        shown: list[RenderableType] = [Text(cells[title][index]) for title in widths]
        shown[list(widths).index("PHASE")] = Text(one.phase, style=_STYLES.get(one.phase, ""))
        table.add_row(*shown, _reason(one))
    return table


def _wide(width: int) -> int:
    """Columns that the view of one object takes."""
    return max(20, min(width, 110))


def _head(shown: Shown, now: datetime, width: int) -> RenderableType:
    """Title, phase, namespace and age."""
    head = Table.grid(expand=False, padding=0)
    head.add_column(width=width - 16, no_wrap=True, overflow="ellipsis")
    head.add_column(width=16, justify="right", no_wrap=True)
    title = Text.assemble(
        (shown.title, "bold"),
        "  ",
        (shown.phase, _STYLES.get(shown.phase, "")),
        (f"  {shown.namespace}", "dim"),
    )
    head.add_row(title, Text(age(shown.created, now), style="dim"))
    return head


def _reason(shown: Shown) -> Text:
    return Text(shown.reason, style="red" if shown.phase == "Failed" else "yellow")


def _fact(shown: Shown, label: str) -> str:
    return shown.facts().get(label, "").removesuffix(" tokens/s")


def _short(step: int | None, state: str) -> str:
    return f"step {step} {state}" if step is not None else state


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
