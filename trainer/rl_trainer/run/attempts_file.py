"""`attempts.jsonl`: every start of a driver in a run folder and how it ended, for who asks when the run's object is gone.

A driver that was killed has no end there. Lines are never taken back, other than those of metrics.jsonl.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rl_api.progress import SPEC_HASH_VARIABLE
from rl_trainer.storage.files import dump_json, writing

ATTEMPTS_FILE = "attempts.jsonl"


def note_attempt(folder: Path, event: str, *, attempt: int | None, step: int, **fields: Any) -> None:
    """Append that a driver has `begun` or `ended`; `attempt`: as the operator counts, None without one, as is the hash of
    the effective spec.

    Raises:
        RLTrainError: the disk is full or the folder is gone.
    """
    spec_hash = os.environ.get(SPEC_HASH_VARIABLE)
    line = {"event": event, "attempt": attempt, "spec_hash": spec_hash, "step": step, "time": time.time()}
    line |= fields
    path = folder / ATTEMPTS_FILE
    with writing(path), path.open("ab") as file:
        file.write(dump_json(line).encode() + b"\n")


def learner_gpus(folder: Path) -> bool | None:
    """Whether the learners of the last driver that has begun there had GPUs; None: nothing says so."""
    try:
        lines = (folder / ATTEMPTS_FILE).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:  # a half written line of a driver that was killed
            continue
        if isinstance(found, dict) and isinstance(found.get("learner_gpus"), bool):
            return bool(found["learner_gpus"])
    return None
