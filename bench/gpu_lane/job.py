"""What a stage is told, and what it says. Plain values that travel as JSON; no import beyond the standard library."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Row = dict[str, Any]
_STARTED = time.monotonic()


class Skipped(Exception):
    """Something cannot run here, and that is no fault; the message is one sentence that says why."""


@dataclass(frozen=True)
class Job:
    """One stage of one shape.

    Attributes:
        device: `cuda` or `cpu`.
        gpus: how many GPUs are here; 0 with `cpu`.
        dtype: of products, as torch names it; masters are float32.
        shape: name, see `shapes.SHAPES`.
        folder: of the model, which is there but for the stage that writes it.
        scratch: folder that is gone after the lane.
        python: interpreter of our stages.
        peer_python: that of TRL; empty: there is none.
        deadline: seconds that the stage has.
    """

    device: Literal["cuda", "cpu"]
    gpus: int
    dtype: Literal["bfloat16", "float32"]
    shape: str
    folder: str
    scratch: str
    python: str
    peer_python: str
    deadline: float

    @property
    def model(self) -> Path:
        """The model folder."""
        return Path(self.folder)

    @property
    def left(self) -> float:
        """Seconds of the deadline that are left in the stage's process; what is late there takes nothing along."""
        return max(1.0, self.deadline - (time.monotonic() - _STARTED))

    def plain(self) -> dict[str, Any]:
        """For JSON; `Job(**plain)` is the way back."""
        return asdict(self)


@dataclass
class Findings:
    """What a stage has found.

    Attributes:
        rows: of its table.
        skipped: sentences on what could not run here.
        failed: sentences on what should have run and did not.
        checks: targets, as `table.Check` with its fields.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
