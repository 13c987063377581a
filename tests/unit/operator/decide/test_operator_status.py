from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import (
    Story,
    all_pods,
    condition,
    failed_ray,
    make_pod,
    make_ray,
    make_reading,
    running_ray,
)

from rl_operator.decide.look import known_status


def test_a_status_that_cannot_be_read_is_an_empty_one() -> None:
    assert known_status({"status": {"attempts": 5}}).attempts == []
    assert known_status({}).conditions == []


def test_training_is_shown() -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(make_ray(),), pods=(make_pod("head"), make_pod("learner", ready=False)))
    assert condition(decision, "ClusterReady") == ("False", "Starting", "the pods are starting")
    assert (decision.pull, decision.status.dashboard_url) == (None, None)
    decision = story.look(rays=(running_ray(),), pods=all_pods())
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    assert condition(decision, "Training") == ("False", "Starting", "the driver has not answered yet")
    assert decision.pull is not None
    assert (decision.pull.address, decision.pull.port) == ("10.0.0.7", 8090)
    assert decision.status.dashboard_url == "http://sums-1-abcde-head-svc.team-a.svc:8265"
    decision = story.train()
    assert decision.status.phase == "Training"
    assert condition(decision, "Training") == ("True", "Running", "the driver reports progress")
    assert decision.status.progress is not None
    assert decision.status.progress.step == 7
    assert decision.status.checkpoint is not None
    assert decision.status.checkpoint.step == 5
    assert [note.reason for note in decision.notes] == ["Training"]
    assert {name: (role.ready, role.desired) for name, role in decision.status.roles.items()} == {
        "head": (1, 1),
        "learner": (1, 1),
        "sampler": (2, 2),
    }


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        ("Starting", "Starting"),
        ("WarmStart", "WarmStart"),
        ("Evaluating", "Evaluating"),
        ("Succeeded", "Stopping"),
    ],
)
def test_the_driver_names_the_phase(phase: str, shown: str) -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(running_ray(),), pods=all_pods(), reading=make_reading(phase=phase))
    assert decision.status.phase == shown


def test_progress_that_says_the_same_is_not_written() -> None:
    story = Story()
    story.begin()
    story.wait(1)
    first = story.train()
    story.wait(10)
    assert story.look(reading=make_reading(time=story.now)).status == first.status
    story.wait(30)
    later = story.look(reading=make_reading(time=story.now))
    assert later.status.progress is not None
    assert later.status.progress.updated_at == story.now


def test_a_silent_driver_is_said() -> None:
    story = Story()
    story.begin()
    story.train()
    story.wait(61)
    decision = story.look(reading_error="no connection (Connection refused)")
    assert condition(decision, "Training") == (
        "Unknown",
        "DriverSilent",
        "the driver does not answer: no connection (Connection refused)",
    )


def test_an_operator_that_starts_anew_keeps_what_it_does_not_know_yet() -> None:
    story = Story()
    story.begin()
    before = story.train()
    after = story.look(reading=None)
    assert after.status == before.status
    assert after.pull is not None


UNREAD = "nobody was there to read its last figures: they are in summary.json of its folder"


@pytest.mark.parametrize(
    ("stop", "trained", "step", "sentence"),
    [
        ({"maxSteps": 100}, True, 100, "the run is done"),  # no other end is a success
        ({"maxSteps": 30}, False, 30, "the run is done"),
        ({"maxSteps": 100, "targetReward": 0.9}, True, 7, f"the run is done; {UNREAD}"),
        ({"maxSteps": 100, "maxDuration": "1h"}, False, None, f"the run is done; {UNREAD}"),
    ],
)
def test_a_run_that_ends_while_no_operator_runs(
    stop: dict[str, Any], trained: bool, step: int | None, sentence: str
) -> None:
    story = Story({"stop": stop})
    story.begin()
    if trained:
        story.train()
    story.wait(1000)
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    decision = story.settled(rays=(done,), pods=(), reading=None)
    assert condition(decision, "Succeeded") == ("True", "Succeeded", sentence)
    progress = decision.status.progress
    assert (progress.step if progress else None) == step
    assert decision.status.attempts[0].to_step == step
    assert progress is None or progress.phase == "Succeeded"


def test_the_last_steps_of_a_failed_job_are_in_its_log() -> None:
    story = Story()
    story.begin()
    story.train()
    log = "Job entrypoint command failed with exit code 1, last available logs:\n"
    log += "step 8/100  reward 0.25  speed 9 tokens/s\nstep 9/100  reward -  speed 9 tokens/s\nrltrain: no luck\n"
    decision = story.look(rays=(failed_ray(log),), pods=())
    assert decision.status.attempts[0].to_step == 9
    progress = decision.status.progress
    assert progress is not None
    assert (progress.step, progress.max_steps, progress.reward) == (9, 100, None)
