"""Figures of progress: which are shown, for how long, and what becomes of them at the end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_worlds import NOW, failed_ray

from rl_api.base import Duration
from rl_api.progress import Attempt, Progress, RunStatus
from rl_api.run import StopSpec
from rl_operator.decide.look import changes, started, unwritten
from rl_operator.decide.status import last_figures, merge_progress, within_budget
from rl_operator.model.seen import Ray


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def progress(step: int = 7, **fields: Any) -> Progress:
    return Progress(**{"phase": "Training", "step": step, "max_steps": 100, "reward": 0.5, **fields})


SHOWN = progress(updated_at=NOW)


@pytest.mark.parametrize(
    ("old", "new", "read", "now", "updated"),
    [
        (None, progress(), 0, 5, 5),
        (progress(), progress(), 0, 5, 5),
        (SHOWN, progress(8), 0, 5, 5),
        (SHOWN, progress(), 29, 29, 0),
        (SHOWN, progress(), 30, 30, 30),
        (SHOWN, progress(eta_seconds=9), 30, 30, 30),
        (SHOWN, progress(), 1, 30, 30),
        (SHOWN, progress(), 0, 30, 0),  # it was read before what is shown was
    ],
)
def test_when_figures_are_new(
    old: Progress | None, new: Progress, read: float, now: float, updated: float
) -> None:
    merged = merge_progress(old, new, at(read), at(now))
    assert merged.updated_at == at(updated)
    assert merged.step == new.step


def test_figures_that_have_just_been_written_have_their_whole_time() -> None:
    old = RunStatus(progress=SHOWN, phase="Training")
    new = old.model_copy(update={"progress": progress(8, updated_at=NOW)})
    waits = {seconds: within_budget(old, new, at(seconds), 1) for seconds in (-1, 0, 9, 10, 11)}
    assert waits == {-1: None, 0: 10.0, 9: 1.0, 10: None, 11: None}
    assert within_budget(old, new.model_copy(update={"progress": None}), at(1), 1) is None
    ended = new.model_copy(update={"progress": progress(8, phase="Evaluating")})
    assert within_budget(old, ended, at(1), 1) is None
    timeless = RunStatus(progress=progress(), phase="Training")
    assert within_budget(timeless, new, at(1), 1) is None


STEPS = StopSpec(max_steps=30)


@pytest.mark.parametrize(
    ("known", "stop", "shown"),
    [
        (None, STEPS, (30, 30)),
        (progress(), STEPS, (100, 100)),
        (progress(), None, None),
        (progress(phase="Succeeded"), STEPS, None),
        (progress(), StopSpec(max_steps=30, target_reward=0.5), None),
        (progress(), StopSpec(max_steps=30, max_duration=Duration(60)), None),
    ],
)
def test_figures_of_a_success(
    known: Progress | None, stop: StopSpec | None, shown: tuple[int, int] | None
) -> None:
    found = last_figures(known, None, True, stop, NOW)
    if shown is None:
        assert found is known
    else:
        assert found is not None
        assert (found.phase, found.step, found.max_steps, found.updated_at) == ("Succeeded", *shown, NOW)
        assert found.eta_seconds is None


def log(*lines: str) -> Ray:
    return failed_ray("\n".join(["failed with exit code 1", *lines]))


@pytest.mark.parametrize(
    ("ray", "shown"),
    [
        (None, None),
        (log("no luck"), None),
        (log("step 6/200  reward 0.25"), None),
        (log("step 7/200  reward 0.25"), None),
        (log("step 8/200  reward 0.25"), (8, 200, 0.25)),
        (log("step 9/200  reward -0.5  speed 1", "step 10/200  reward -"), (10, 200, None)),
        (log("a step 9/200  reward 1"), None),
        (log("step 201/200  reward x"), (201, 200, None)),
    ],
)
def test_figures_of_a_failure(ray: Ray | None, shown: tuple[int, int, float | None] | None) -> None:
    known = progress(eta_seconds=5, updated_at=NOW)
    found = last_figures(known, ray, False, None, at(9))
    if shown is None:
        assert found is known
    else:
        assert found is not None
        assert (found.step, found.max_steps, found.reward) == shown
        assert (found.phase, found.eta_seconds, found.updated_at) == ("Training", None, at(9))


def test_steps_of_an_attempt_that_nobody_has_read_before() -> None:
    found = last_figures(None, log("step 1/9  reward 1"), False, None, NOW)
    assert found is not None
    assert (found.step, found.max_steps) == (1, 9)


def attempt(number: int = 1, **fields: Any) -> Attempt:
    return Attempt(number=number, ray_job=f"sums-{number}", **fields)


def test_attempts_that_nobody_has_written() -> None:
    rays = [
        Ray("RayJob", f"sums-{number}", "u", number, created) for number, created in ((3, None), (2, NOW))
    ]
    found = unwritten(RunStatus(attempts=[attempt(1)]), rays, at(5))
    assert [(one.number, one.ray_job, one.start_time, one.from_step) for one in found] == [
        (2, "sums-2", NOW, 0),
        (3, "sums-3", at(5), 0),
    ]
    assert unwritten(RunStatus(attempts=[attempt(3)]), rays, NOW) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"image": "b", "profile_hash": "p", "spec_hash": "s"}, ""),
        ({"image": "a", "profile_hash": "p", "spec_hash": "s"}, {}, ""),
        ({"image": "a"}, {"image": "a"}, ""),
        ({"image": "a"}, {"image": "b"}, "image b instead of a"),
        ({"profile_hash": "p"}, {"profile_hash": "q"}, "a changed profile"),
        (
            {"image": "a", "spec_hash": "s"},
            {"image": "b", "spec_hash": "t"},
            "image b instead of a and a changed effective spec",
        ),
    ],
)
def test_what_an_attempt_begins_with_anew(before: dict[str, str], after: dict[str, str], words: str) -> None:
    assert changes(attempt(1, **before), attempt(2, **after)) == words
    text = "attempt 2 begins at step 0 as sums-2"
    note = started(attempt(2, **after), attempt(1, **before))
    assert (note.type, note.message) == ("Normal", f"{text}, with {words}" if words else text)
