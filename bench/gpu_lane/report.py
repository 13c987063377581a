"""What the lane has found so far, as JSON for programs and as Markdown for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_lane.loop import TURNS

NAME = "gpu-lane"
TITLES = {
    "machine": "Machine",
    "shapes": "Models",
    "learner": "Learner",
    "engine": "Engines",
    "divided": "Engines over several devices",
    "agreement": "Agreement of engine and learner",
    "turns": "Devices that change hands",
    "scoring": "Models that score",
    "kernels": "Kernels",
    "loop": "Runs",
    "peer": "TRL",
}


class Report:
    """Results by stage and shape, in a file that is complete after every stage."""

    def __init__(self, folder: Path, meta: Mapping[str, Any], *, earlier: bool) -> None:
        """`earlier`: what the file in `folder` holds stays, but for what is measured again; else it begins anew."""
        self._file = folder / f"{NAME}.json"
        self.markdown = folder / f"{NAME}.md"
        self.results: dict[str, dict[str, Any]] = {}
        if earlier and self._file.exists():
            found = json.loads(self._file.read_text())
            if all(found["meta"].get(key) == meta[key] for key in ("device", "dtype")):
                self.results = found["results"]
        self._meta = dict(meta)
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, stage: str, shape: str) -> bool:
        """Whether this was measured before, and all of it succeeded."""
        found = self.results.get(_key(stage, shape))
        return found is not None and not found["failed"] and all(check["passed"] for check in found["checks"])

    def add(self, stage: str, shape: str, found: Mapping[str, Any], seconds: float) -> None:
        """Keeps what a stage has found, and writes both files."""
        self.results[_key(stage, shape)] = {"stage": stage, "shape": shape, "seconds": seconds, **found}
        meta = self._meta | {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        payload = {"name": NAME, "passed": self.passed, "meta": meta, "results": self.results}
        for file, text in (
            (self._file, json.dumps(payload, indent=2) + "\n"),
            (self.markdown, "\n".join(self._lines(meta)) + "\n"),
        ):
            temporary = file.with_suffix(f"{file.suffix}.tmp")
            temporary.write_text(text)
            temporary.replace(file)

    @property
    def passed(self) -> bool:
        """Whether nothing has failed and every target was reached."""
        return not any(self.failures)

    @property
    def failures(self) -> list[str]:
        """A sentence for each failure and each missed target."""
        return [text for found in self.results.values() for text in _failures(found)]

    def _lines(self, meta: Mapping[str, Any]) -> Iterator[str]:
        yield "# GPU lane"
        yield ""
        yield ", ".join(f"{name} {value}" for name, value in meta.items())
        for stage, title in TITLES.items():
            of_stage = [found for found in self.results.values() if found["stage"] == stage]
            if not of_stage:
                continue
            yield from ("", f"## {title}")
            rows = [{"shape": found["shape"], **row} for found in of_stage for row in found["rows"]]
            for table in _tables(rows):
                yield ""
                yield from table
            for found in of_stage:
                for text in found["skipped"]:
                    yield from ("", f"Skipped ({found['shape']}): {text}.")
                for text in _failures(found):
                    yield from ("", f"**Failed**: {text}.")
        if ratios := list(self._ratios()):
            yield from ("", "## Ours against TRL", "")
            yield from _table(ratios)

    def _ratios(self) -> Iterator[dict[str, Any]]:
        """The same work on the same GPU: parts in turns in one process, as TRL's are."""
        for found in self.results.values():
            if found["stage"] != "peer":
                continue
            ours = self.results.get(_key("loop", found["shape"]), {"rows": []})["rows"]
            for theirs in found["rows"]:
                for row in ours:
                    if row["run"] == TURNS:
                        yield {
                            "shape": found["shape"],
                            "engine": row["engine"],
                            "ours, tok/s": row["completion tok/s"],
                            f"{theirs['peer']}, tok/s": theirs["completion tok/s"],
                            "ratio": row["completion tok/s"] / theirs["completion tok/s"],
                        }


def _key(stage: str, shape: str) -> str:
    return f"{stage} {shape}"


def _failures(found: Mapping[str, Any]) -> Iterator[str]:
    where = f"{found['stage']} {found['shape']}"
    for text in found["failed"]:
        yield f"{where}: {text}"
    for check in found["checks"]:
        if not check["passed"]:
            yield f"{where}: {check['name']}: found {check['found']}, wanted {check['wanted']}"


def _tables(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """A table for each kind of row: those with the same columns."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    for kind in kinds.values():
        yield list(_table(kind))


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = list(rows[0])
    numbers = [any(isinstance(row[column], int | float) for row in rows) for column in columns]
    yield _line(map(_cell, columns))
    yield _line("---:" if number else "---" for number in numbers)
    for row in rows:
        yield _line(_cell(row[column]) for column in columns)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value).replace("|", "\\|")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
