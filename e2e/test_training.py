"""Runs that train to their end on the cluster, and what interrupts them on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_client import Cluster, wait_for
from conftest import SYSTEM, TRAINER_IMAGE
from training_run import TrainingRun, check_every_step_once

Train = Callable[..., TrainingRun]
# From apply to the first step: pods start, Ray starts, torch and the model are loaded, all on a few cores.
START_SECONDS = 300
# Small steps take a second or two here; the rest is patience for a busy machine.
TRAIN_SECONDS = 420


@pytest.mark.usefixtures("claim")
def test_quickstart_trains_to_its_end(train: Train) -> None:
    run = train("quickstart")
    first = run.wait_for_step(1, START_SECONDS)
    assert first < 60, "progress was not seen before the end"
    seen = [first]

    def finished() -> bool:
        if run.step != seen[-1]:
            seen.append(run.step)
        return run.condition("Succeeded").get("status") == "True"

    wait_for("the run succeeds", finished, TRAIN_SECONDS, run.describe)
    assert seen == sorted(seen)
    assert len(seen) >= 3, f"progress in the status was {seen}"
    status = run.status
    assert status["progress"]["step"] == 60
    assert status["progress"]["reward"] is not None
    assert status["checkpoint"]["step"] == 60
    assert [attempt["number"] for attempt in status["attempts"]] == [1]
    check_every_step_once(run.metrics(TRAINER_IMAGE), 60)


@pytest.mark.usefixtures("claim")
def test_suspend_and_resume_repeats_nothing(train: Train) -> None:
    # No checkpoint is due before the suspension: the one that it asks for is the only one.
    run = train("pause", {"stop": {"maxSteps": 150}, "checkpoint": {"everySteps": 140}})
    run.wait_for_step(5, START_SECONDS)
    run.patch({"suspend": True})
    run.wait_for_condition("Suspended", 180)
    wait_for("its pods are gone", lambda: not run.pods(), 90, run.describe)
    kept = run.status["checkpoint"]["step"]
    assert 5 <= kept < 140
    run.patch({"suspend": False})
    run.wait_for_step(kept + 1, START_SECONDS)
    assert run.condition("Suspended").get("status") == "False"
    run.wait_for_condition("Succeeded", TRAIN_SECONDS)
    assert run.status["attempts"][-1]["fromStep"] == kept
    check_every_step_once(run.metrics(TRAINER_IMAGE), 150)


@pytest.mark.usefixtures("claim")
def test_deleting_a_run_leaves_nothing(cluster: Cluster, train: Train) -> None:
    run = train("gone", {"stop": {"maxSteps": 2000}})
    run.wait_for_step(2, START_SECONDS)
    assert any(each.startswith("RayJob/") for each in run.objects())
    cluster.kubectl("delete", "rltrainingrun", run.name, "-n", run.namespace, "--timeout=150s", timeout=180)
    wait_for("nothing is left of the run", lambda: not run.objects(), 90, lambda: f"left: {run.objects()}")


@pytest.mark.usefixtures("claim")
def test_operator_killed_while_a_run_trains(cluster: Cluster, train: Train) -> None:
    run = train("orphan", {"stop": {"maxSteps": 150}})
    before = run.wait_for_step(3, START_SECONDS)
    head = run.pods("head")[0]["metadata"]["uid"]
    cluster.kubectl("delete", "pods", "--all", "-n", SYSTEM, "--grace-period=0", "--force")
    run.wait_for_step(before + 1, 120)
    assert run.pods("head")[0]["metadata"]["uid"] == head, "the run was disturbed"
    run.wait_for_condition("Succeeded", TRAIN_SECONDS)
    assert len(run.status["attempts"]) == 1
    check_every_step_once(run.metrics(TRAINER_IMAGE), 150)


@pytest.mark.usefixtures("claim")
def test_head_pod_killed_goes_on_from_the_checkpoint(train: Train) -> None:
    run = train("headless", {"stop": {"maxSteps": 150}})
    kept = run.wait_for_checkpoint(START_SECONDS)
    run.kill_pod("head")
    wait_for("a second attempt", lambda: len(run.status.get("attempts", [])) == 2, 180, run.describe)
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    first, second = run.status["attempts"]
    assert first["reason"], "the first attempt does not say why it ended"
    assert second["fromStep"] >= kept
    check_every_step_once(run.metrics(TRAINER_IMAGE), 150)
