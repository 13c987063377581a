"""What a program says of itself at /status: good figures are taken, bad ones count as not said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rl_api.progress import CheckpointStatus, Progress, RunStatus, read_checkpoint, read_progress

SAID: dict[str, Any] = {"phase": "Training", "step": 3, "maxSteps": 9, "reward": -0.5, "bufferFill": 1.0}


def test_good_figures_are_taken() -> None:
    expected = Progress(phase="Training", step=3, max_steps=9, reward=-0.5, buffer_fill=1.0)
    assert read_progress(SAID) == expected
    assert read_progress({}) == Progress()
    assert read_progress({"max_steps": 7}) == Progress()  # named as in Python: no field of the contract


def test_the_clock_of_a_program_is_its_own() -> None:
    assert read_progress(SAID | {"updatedAt": "2026-01-31T12:00:00Z"}) == read_progress(SAID)


@pytest.mark.parametrize(
    ("figure", "value", "otherwise"),
    [
        ("step", 2**53, 0),
        ("step", -1, 0),
        ("max_steps", 7, 9),
        ("max_steps", -7, 9),
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
    with pytest.raises(ValueError, match="found a list"):
        read_progress({"phase": [["Training"]]})


def test_the_longest_address_of_a_checkpoint() -> None:
    assert read_checkpoint({"step": 3, "uri": "é" * 512}) == CheckpointStatus(step=3, uri="é" * 512)


def test_a_checkpoint() -> None:
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    said = {"step": 3, "uri": "s3://a/b", "time": "2026-01-31T12:00:00Z"}
    found = read_checkpoint(said)
    assert found is not None
    assert (found.step, found.uri, found.time) == (3, "s3://a/b", time)
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
        {"step": 3, "uri": ""},
        {"step": 3, "uri": "a" * 1025},
        {"step": 3, "uri": "é" * 513},
        {"step": 3, "uri": "a" * 1_000_000},
        {"step": 3, "uri": "s3://a/\x1b[2J"},
        {"step": 3, "uri": "s3://a/\u202egnp"},
        {"step": 3, "uri": 5},
        {"step": 10**20, "uri": "a"},
        {"step": -1, "uri": "a"},
    ],
)
def test_a_checkpoint_that_nobody_could_find(said: object) -> None:
    assert read_checkpoint(said) is None


@pytest.mark.parametrize(("length", "kept"), [(1024, True), (1025, False), (4096, False)])
def test_an_address_that_an_earlier_version_has_stored_may_be_too_long(length: int, kept: bool) -> None:
    stored = {"phase": "Training", "checkpoint": {"step": 3, "uri": "a" * length}}
    status = RunStatus.model_validate(stored)
    assert status.phase == "Training"
    assert (status.checkpoint is not None) is kept
    assert (read_checkpoint(stored["checkpoint"]) is not None) is kept
