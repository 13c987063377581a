"""What a program says of itself at /status: good figures are taken, bad ones count as not said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rl_api.progress import CheckpointStatus, Progress, read_checkpoint, read_progress

SAID: dict[str, Any] = {"phase": "Training", "step": 3, "maxSteps": 9, "reward": -0.5, "bufferFill": 1.0}


def test_good_figures_are_taken() -> None:
    expected = Progress(phase="Training", step=3, max_steps=9, reward=-0.5, buffer_fill=1.0)
    assert read_progress(SAID) == expected
    assert read_progress({}) == Progress()


def test_the_clock_of_a_program_is_its_own() -> None:
    assert read_progress(SAID | {"updatedAt": "2026-01-31T12:00:00Z"}) == read_progress(SAID)


@pytest.mark.parametrize(
    ("figure", "value", "otherwise"),
    [
        ("step", 2**53, 0),
        ("step", -1, 0),
        ("max_steps", 7, 9),  # named as in Python: no field of the contract
        ("reward", float("inf"), None),
        ("bufferFill", 1.5, None),
        ("tokensPerSecond", -1.0, None),
        ("etaSeconds", float("nan"), None),
        ("staleness", "old", None),
    ],
)
def test_a_bad_figure_counts_as_not_said(figure: str, value: Any, otherwise: Any) -> None:
    found = read_progress(SAID | {figure: value}).to_document()
    expected = read_progress(SAID).to_document()
    assert found == expected | ({figure: otherwise} if figure in expected else {})


def test_the_largest_step_that_json_keeps() -> None:
    assert read_progress({"step": 2**53 - 1}).step == 2**53 - 1


def test_a_phase_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="its answer has a wrong field phase: found 'Dreaming'"):
        read_progress({"phase": "Dreaming"})


def test_a_checkpoint() -> None:
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    said = {"step": 3, "uri": "s3://a/b", "time": "2026-01-31T12:00:00Z"}
    assert read_checkpoint(said) == CheckpointStatus(step=3, uri="s3://a/b", time=time)
    naive = said | {"time": "2026-01-31T12:00:00"}
    assert read_checkpoint(naive) == CheckpointStatus(step=3, uri="s3://a/b")


@pytest.mark.parametrize(
    "said",
    [
        None,
        "s3://a/b",
        {},
        {"step": 3},
        {"uri": "a"},
        {"step": 3, "uri": "a" * 4097},
        {"step": -1, "uri": "a"},
    ],
)
def test_a_checkpoint_that_nobody_could_find(said: object) -> None:
    assert read_checkpoint(said) is None
