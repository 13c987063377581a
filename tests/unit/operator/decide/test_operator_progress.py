"""How often a status is written: figures have a budget, facts have none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import NOW, Story, all_pods, failed_ray, make_reading

from rl_api.progress import CheckpointStatus, Progress, RoleStatus, RunStatus
from rl_operator.decide.status import budget, merge_progress, news, within_budget
from rl_operator.model.decision import Decision


def training() -> Story:
    story = Story()
    story.begin()
    story.wait(1)
    story.train()
    return story


def read(story: Story, **reading: Any) -> Decision:
    return story.look(reading=make_reading(**{"time": story.now, **reading}))


def test_quick_steps_are_written_once_in_ten_seconds() -> None:
    story = training()
    writes, written = [], story.run["status"]
    for second in range(1, 61):
        story.wait(1)
        read(story, step=7 + 5 * second)
        if story.run["status"] != written:
            written = story.run["status"]
            writes.append(second)
    assert writes == [10, 20, 30, 40, 50, 60]
    assert written["progress"]["step"] == 7 + 5 * 60
    assert written["progress"]["updatedAt"] == story.now.isoformat().replace("+00:00", "Z")


def test_what_waits_is_looked_at_when_it_is_due() -> None:
    story = training()
    story.wait(4)
    decision = read(story, step=9)
    assert decision.status.progress is not None
    assert (decision.status.progress.step, decision.requeue) == (7, 6.0)
    story.wait(6)
    decision = story.look()
    assert decision.status.progress is not None
    assert decision.status.progress.step == 9


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"reading": {"phase": "Evaluating"}}, lambda status: status.phase == "Evaluating"),
        ({"reading": {"checkpoint": 8}}, lambda status: status.checkpoint.step == 8),
        (
            {"pods": all_pods()[:1] + all_pods()[2:]},
            lambda status: status.conditions[1].reason == "PodsMissing",
        ),
        ({"rays": (failed_ray("exit code 1"),)}, lambda status: status.attempts[0].end_time is not None),
        ({"suspend": True}, lambda status: status.checkpoint_request is not None),
    ],
)
def test_facts_are_written_at_once_and_take_the_figures_along(change: dict[str, Any], seen: Any) -> None:
    story = training()
    story.wait(1)
    if change.pop("suspend", False):
        story.set({"suspend": True})
    reading = make_reading(**{"step": 9, "time": story.now, **change.pop("reading", {})})
    status = story.look(reading=reading, **change).status
    assert seen(status)
    assert status.progress is not None
    assert status.progress.step == 9


def test_pods_that_change_nothing_else_wait_with_the_figures() -> None:
    old = RunStatus.model_validate(training().run["status"])
    assert old.progress is not None
    fewer = old.model_copy(update={"roles": {"sampler": RoleStatus(desired=2, ready=1)}})
    later = NOW + timedelta(seconds=4)
    assert within_budget(old, fewer, later, 1) == 7.0
    assert within_budget(old, fewer, NOW + timedelta(seconds=11), 1) is None
    assert within_budget(old, fewer.model_copy(update={"phase": "Stopping"}), later, 1) is None
    assert within_budget(old, old, later, 1) is None
    assert within_budget(RunStatus(), fewer, later, 1) is None


def test_the_drivers_clock_is_not_ours() -> None:
    """A status whose time lies in the future, as an older version took it from a driver, is written all the same."""
    story = training()
    story.run["status"]["progress"]["updatedAt"] = "2126-03-01T12:00:00Z"
    story.wait(1)
    decision = read(story, step=8)
    assert decision.status.progress is not None
    assert (decision.status.progress.step, decision.status.progress.updated_at) == (8, story.now)


def test_the_same_figures_are_a_sign_of_life_now_and_then_and_silence_is_none() -> None:
    story = training()
    first = story.now
    for second in (10, 20, 30):
        story.wait(10)
        decision = read(story)
        assert decision.status.progress is not None
        assert decision.status.progress.updated_at == (story.now if second == 30 else first)
    seen = story.now
    story.wait(40)
    decision = story.look()
    assert decision.status.progress is not None
    assert decision.status.progress.updated_at == seen


def test_what_a_reading_does_not_say_stays() -> None:
    story = training()
    old = RunStatus.model_validate(story.run["status"]).progress
    merged = merge_progress(old, Progress(phase="Training", reward=0.75), story.now, story.now)
    assert (merged.step, merged.max_steps, merged.reward) == (7, 100, 0.75)


def test_figures_of_a_thousand_runs_are_written_less_often() -> None:
    assert [budget(count).total_seconds() for count in (0, 1, 200, 201, 1000, 9000)] == [
        10,
        10,
        10,
        11,
        50,
        50,
    ]
    one = Progress(phase="Training", step=1, updated_at=NOW)
    old = RunStatus(progress=one)
    new = RunStatus(progress=one.model_copy(update={"step": 2}))
    assert within_budget(old, new, NOW + timedelta(seconds=20), 200) is None
    assert within_budget(old, new, NOW + timedelta(seconds=20), 1000) == 30.0
    assert within_budget(old, new.model_copy(update={"phase": "Stopping"}), NOW, 1000) is None
    assert news(one, one.model_copy(update={"step": 2}), 1000) == 50.0
    assert news(one, one.model_copy(update={"phase": "Evaluating"}), 1000) == 0.0


def test_what_is_news() -> None:
    one = Progress(phase="Training", step=1, eta_seconds=5)
    assert news(one, one.model_copy(update={"eta_seconds": 4}), 1) is None
    assert news(one, one.model_copy(update={"step": 2}), 1) == 10.0
    assert news(one, one.model_copy(update={"phase": "Evaluating"}), 1) == 0.0


@pytest.mark.parametrize(
    "lines", ["step 100000000000000000000/5  reward 1", "step 9999999999999999/5  reward 0.5"]
)
def test_lines_of_a_log_with_figures_that_are_none(lines: str) -> None:
    story = training()
    decision = story.fail(f"Job entrypoint command failed with exit code 1\n{lines}\n")
    assert decision.status.progress is not None
    assert decision.status.progress.step == 7
    assert CheckpointStatus(step=5, uri="/var/lib/rltrain/run") == decision.status.checkpoint
