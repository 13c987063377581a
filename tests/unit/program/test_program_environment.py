"""What a program is told about its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_api import RunSpec
from rl_trainer.program.environment import checkpoint_place, program_environment

FOLDER = Path("/runs/a")


def spec(**more: Any) -> RunSpec:
    trainer = {"kind": "command", "command": ["x"], "env": [{"name": "SPEED", "value": "3"}]}
    return RunSpec.model_validate({"trainer": trainer, **more}, by_alias=True, by_name=False)


def environment(base: dict[str, str], run: RunSpec, deadline: float | None = None) -> dict[str, str]:
    return program_environment(
        base,
        run,
        name="a",
        folder=FOLDER,
        config=FOLDER / "run.json",
        metrics=FOLDER / "program.jsonl",
        attempt=2,
        resume=True,
        deadline=deadline,
    )


def test_everything_it_is_told() -> None:
    told = environment({}, spec(stop={"maxSteps": 7}, scheduling={"preemptionGracePeriod": "90s"}), 12.5)
    assert told == {
        "PYTHONUNBUFFERED": "1",
        "SPEED": "3",
        "RLTRAIN_CONFIG": "/runs/a/run.json",
        "RLTRAIN_RUN": "a",
        "RLTRAIN_RUN_FOLDER": "/runs/a",
        "RLTRAIN_CHECKPOINTS": "/runs/a/checkpoints",
        "RLTRAIN_METRICS": "/runs/a/program.jsonl",
        "RLTRAIN_ATTEMPT": "2",
        "RLTRAIN_RESUME": "1",
        "RLTRAIN_MAX_STEPS": "7",
        "RLTRAIN_GRACE_SECONDS": "90",
        "RLTRAIN_DEADLINE": "12.500",
    }


def test_the_rest_is_as_it_was_but_for_the_token() -> None:
    base = {"PATH": "/bin", "RAY_ADDRESS": "head:6379", "SPEED": "1", "RLTRAIN_STATUS_TOKEN": "secret"}
    told = environment(base, spec())
    assert (told["PATH"], told["RAY_ADDRESS"], told["SPEED"]) == ("/bin", "head:6379", "3")
    assert "secret" not in told.values()
    assert "RLTRAIN_DEADLINE" not in told


@pytest.mark.parametrize(
    ("checkpoint", "place"),
    [
        (None, "/runs/a/checkpoints"),
        ({}, "/runs/a/checkpoints"),
        ({"storage": {"persistentVolumeClaim": "disk"}}, "/runs/a/checkpoints"),
        ({"storage": {"path": "kept"}}, "/runs/a/kept"),
        ({"storage": {"path": "/shared/kept"}}, "/shared/kept"),
        ({"storage": {"s3": "s3://bucket/a"}}, "s3://bucket/a"),
    ],
)
def test_where_checkpoints_are_kept(checkpoint: dict[str, Any] | None, place: str) -> None:
    assert checkpoint_place(spec(checkpoint=checkpoint), FOLDER) == place
