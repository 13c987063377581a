"""What a program is told about its run: environment variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_api import RunSpec
from rl_api.progress import STATUS_TOKEN_FILE_VARIABLE, STATUS_TOKEN_VARIABLE

# Ours alone: whoever has the token can speak for the operator.
_NOT_FOR_PROGRAMS = (
    STATUS_TOKEN_VARIABLE,
    STATUS_TOKEN_FILE_VARIABLE,
    "RLTRAIN_STATUS_HOST",
    "RLTRAIN_PLAIN",
)


def checkpoint_place(spec: RunSpec, folder: Path) -> str:
    """Where the program keeps its checkpoints: a folder, or an s3:// address."""
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    if storage is not None and storage.s3 is not None:
        return storage.s3
    if storage is not None and storage.path is not None:
        return str(folder / storage.path)
    return str(folder / "checkpoints")


def program_environment(
    base: Mapping[str, str],
    spec: RunSpec,
    *,
    name: str,
    folder: Path,
    config: Path,
    metrics: Path,
    attempt: int,
    resume: bool,
    deadline: float | None,
) -> dict[str, str]:
    """The program's environment: rltrain's own (`base`), the run's `trainer.env`, and what it is told about the run.

    Args:
        folder: run folder, absolute.
        config: JSON file with the whole run.
        metrics: file that the program appends its progress to.
        attempt: number of this try, 1 is the first.
        resume: whether an earlier attempt may have left checkpoints.
        deadline: when the training time is used up, seconds since the epoch; None: never.
    """
    told = {
        "RLTRAIN_CONFIG": str(config),
        "RLTRAIN_RUN": name,
        "RLTRAIN_RUN_FOLDER": str(folder),
        "RLTRAIN_CHECKPOINTS": checkpoint_place(spec, folder),
        "RLTRAIN_METRICS": str(metrics),
        "RLTRAIN_ATTEMPT": str(attempt),
        "RLTRAIN_RESUME": "1" if resume else "0",
        "RLTRAIN_MAX_STEPS": str(spec.stop.max_steps),
        "RLTRAIN_GRACE_SECONDS": f"{spec.scheduling.preemption_grace_period.seconds:g}",
    }
    if deadline is not None:
        told["RLTRAIN_DEADLINE"] = f"{deadline:.3f}"
    kept = {key: value for key, value in base.items() if key not in _NOT_FOR_PROGRAMS}
    # A program that writes into a pipe keeps its lines back otherwise, and a log that is late helps nobody.
    return {"PYTHONUNBUFFERED": "1", **kept, **{one.name: one.value for one in spec.trainer.env}, **told}
