"""`attempts.jsonl`: every start of a driver in a run folder and how it ended, for who asks when the run's object is gone.

A driver that was killed has no end there. Lines are never taken back, other than those of metrics.jsonl.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rl_trainer.storage.files import dump_json, writing

ATTEMPTS_FILE = "attempts.jsonl"


def note_attempt(folder: Path, event: str, *, attempt: int | None, step: int, **fields: Any) -> None:
    """Append that a driver has `begun` or `ended`; `attempt`: as the operator counts, None without one.

    Raises:
        RLTrainError: the disk is full or the folder is gone.
    """
    line = {"event": event, "attempt": attempt, "step": step, "time": time.time(), **fields}
    path = folder / ATTEMPTS_FILE
    with writing(path), path.open("ab") as file:
        file.write(dump_json(line).encode() + b"\n")
