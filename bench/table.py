"""What every benchmark ends with: a table for a person, a JSON file for a program, and the targets it was held to."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Check:
    """One target: `passed` is decided by the benchmark, `found` and `wanted` are what a person reads."""

    name: str
    passed: bool
    found: str
    wanted: str


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of repeated measurements, kept with the raw values."""

    minimum: float
    median: float
    maximum: float
    values: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{_number(self.minimum)} / {_number(self.median)} / {_number(self.maximum)}"


def spread(values: Sequence[float]) -> Spread:
    """Summarise repetitions; raises ValueError when there are none."""
    if not values:
        raise ValueError("no repetition was measured")
    numbers = [float(value) for value in values]
    return Spread(min(numbers), statistics.median(numbers), max(numbers), numbers)


def at_least(name: str, found: float, wanted: float, unit: str = "x") -> Check:
    """A target of the kind "at least `wanted`"."""
    return Check(name, found >= wanted, f"{found:.2f}{unit}", f">= {wanted:g}{unit}")


def at_most(name: str, found: float, wanted: float, unit: str = "x") -> Check:
    """A target of the kind "at most `wanted`"."""
    return Check(name, found <= wanted, f"{found:.2f}{unit}", f"<= {wanted:g}{unit}")


def machine() -> dict[str, Any]:
    """What the numbers were measured on; written into every result file."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpus": os.cpu_count(),
        "load_at_end": load,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def add_out(parser: argparse.ArgumentParser) -> None:
    """The option of a benchmark that says where `report` writes."""
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="where the JSON file is written (default: bench/results)",
    )


def report(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    meta: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
    out: Path = RESULTS,
) -> bool:
    """Print `rows` as a table and the checks below it, and write both to NAME.json in the folder `out`.

    A cell may be a `Spread` (printed as min / median / max, stored with its values), a number or text.
    Returns True when every check passed, so that a script can end with `sys.exit(not report(...))`.
    """
    from rich.console import Console
    from rich.table import Table

    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"row {list(row)} has {len(row)} cells, but there are {len(columns)} columns")
    table = Table(title=name, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*[_cell(value) for value in row])
    console = Console(width=None if os.isatty(1) else 160)
    console.print(table)
    for check in checks:
        verdict = "[green]reached[/]" if check.passed else "[red]missed[/]"
        console.print(f"{verdict}  {check.name}: {check.found} (wanted {check.wanted})", highlight=False)

    out.mkdir(parents=True, exist_ok=True)
    payload = {
        "name": name,
        "columns": list(columns),
        "rows": [dict(zip(columns, [_plain(value) for value in row], strict=True)) for row in rows],
        "checks": [asdict(check) for check in checks],
        "passed": all(check.passed for check in checks),
        "meta": {**machine(), **dict(meta or {})},
    }
    target = out / f"{name}.json"
    temporary = target.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(payload, indent=2) + "\n")
    temporary.replace(target)
    root = RESULTS.parent.parent
    shown = target.relative_to(root) if target.is_relative_to(root) else target
    console.print(f"written to {shown}", style="dim", highlight=False)
    return all(check.passed for check in checks)


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _cell(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Spread) else value
