"""Runs that train to their end on the cluster: alone, side by side, with a pause."""

from __future__ import annotations

import pytest
from cluster_client import wait_for
from conftest import TRAINER_IMAGE, Train
from training_run import ENDLESS

# From apply to the first step: pods start, Ray starts, torch and the model are loaded, all on a few cores.
START_SECONDS = 300
# Small steps take a second or two here; the rest is patience for a busy machine.
TRAIN_SECONDS = 420


def test_quickstart_trains_to_its_end(train: Train) -> None:
    run = train("quickstart", {"stop": {"maxSteps": 80}})
    first = run.wait_for_step(1, START_SECONDS)
    assert first < 80, "progress was not seen before the end"
    seen = [first]

    def finished() -> bool:
        if run.step != seen[-1]:
            seen.append(run.step)
        return run.condition("Succeeded").get("status") == "True"

    wait_for("the run succeeds", finished, TRAIN_SECONDS, run.describe)
    assert seen == sorted(seen)
    assert len(seen) >= 3, f"progress in the status was {seen}"
    status = run.status
    assert status["progress"]["step"] == 80
    assert status["progress"]["reward"] is not None
    assert run.last_checkpoint(TRAINER_IMAGE) == 80
    assert [attempt["number"] for attempt in status["attempts"]] == [1]


def test_suspend_and_resume_repeats_nothing(train: Train) -> None:
    # No checkpoint is due before the suspension: the one that it asks for is the only one.
    run = train("pause", ENDLESS | {"checkpoint": {"everySteps": 1000}})
    run.wait_for_step(3, START_SECONDS)
    run.patch({"suspend": True})
    run.wait_for_condition("Suspended", 180)
    wait_for("its pods are gone", lambda: not run.pods(), 90, run.describe)
    kept = run.status["checkpoint"]["step"]
    assert kept >= 3
    run.wind_up(kept + 10)
    run.patch({"suspend": False})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert run.condition("Suspended").get("status") == "False"
    assert run.status["attempts"][-1]["fromStep"] == kept
    assert run.step == kept + 10


@pytest.mark.long
def test_two_runs_in_two_namespaces_one_with_two_learners_and_two_samplers(
    train: Train, train_elsewhere: Train, elsewhere: dict[str, list[str]]
) -> None:
    learner = {"replicas": 2, "parallelism": "fsdp2"}
    pairs = train("pairs", {"learner": learner, "sampler": {"replicas": 2, "minReplicas": 2}})
    # The same name elsewhere is another run.
    other = train_elsewhere("pairs", {"seed": 2, "learner": elsewhere, "sampler": elsewhere})
    assert other.namespace != pairs.namespace
    pairs.wait_for_step(1, START_SECONDS)
    pairs.wait_for_roles({"learner": 2, "sampler": 2})
    for run in (pairs, other):
        run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
        assert run.step == 20
        assert len(run.status["attempts"]) == 1
