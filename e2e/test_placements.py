"""Who shares devices on the cluster: samplers in learners' pods, and a run that goes on with what its measurements speak
for."""

from __future__ import annotations

import pytest
from cluster_client import wait_for
from conftest import Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, TrainingRun

# Learning takes about as long as sampling, of which a quarter of the answers is under way at a time.
IN_WAVES = {
    "model": {"tiny": {"hiddenSize": 512, "layers": 4, "heads": 16, "kvHeads": 8, "intermediateSize": 1024}},
    "algorithm": {"promptsPerStep": 8, "groupSize": 8},
    "sampler": {"maxSequences": 16},
    "buffer": {"capacity": 64, "maxStaleness": 0},
    # None is due before the one that is asked for.
    "checkpoint": {"everySteps": 1000},
    # Who says something of it begins with that: else a prior would see the waves as well.
    "placement": {"replan": {"threshold": 0.1, "steps": 3}, "sharedSamplers": 0},
}
# Forecasts begin after ten steps of a few seconds, and take one second of a processor, of each hundred at most.
REPLAN_SECONDS = 600


def test_samplers_that_take_turns_with_learners_have_no_pods_of_their_own(train: Train) -> None:
    run = train("turns", {"placement": {"mode": "collocated"}, "checkpoint": {"everySteps": 1000}})
    ends_shared(run, mode="collocated", pods=["head", "learner"], samplers=1)


def test_a_sampler_beside_a_learner_hands_over_to_one_in_a_pod_of_its_own(train: Train) -> None:
    """Weights are copied out of the learner's memory within its pod, and come from the object store in the other."""
    shares = {"placement": {"mode": "hybrid", "sharedSamplers": 1}, "weightSync": {"transport": "ipc"}}
    run = train("hands-over", {**shares, "sampler": {"replicas": 2}, "checkpoint": {"everySteps": 1000}})
    ends_shared(run, mode="hybrid", pods=["head", "learner", "sampler"], samplers=2)


def ends_shared(run: TrainingRun, *, mode: str, pods: list[str], samplers: int) -> None:
    """A run with one learner, beside which one of the samplers is, trains in these pods to its end."""
    run.wait_for_step(1, START_SECONDS)
    roles = [pod["metadata"]["labels"]["rltrain.dev/role"] for pod in run.pods()]
    assert sorted(role for role in roles if role in ("head", "learner", "sampler")) == pods
    status = run.status
    assert (status["placement"]["mode"], status["placement"]["shared"]) == (mode, 1)
    run.wait_for_roles({"learner": 1, "sampler": samplers})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    status = run.status
    assert run.step == 20
    assert status["placement"]["measuredStepSeconds"] > 0
    assert len(status["attempts"]) == 1


@pytest.mark.long
def test_a_run_goes_on_with_the_placement_that_its_measurements_speak_for(train: Train) -> None:
    """Strictly on-policy its learner waits for the last answer of a step; in parts it begins with the first ones."""
    run = train("replans", IN_WAVES | ENDLESS)
    run.wait_for_step(1, START_SECONDS)
    placed = run.status["placement"]
    assert (placed["mode"], placed["shared"], "partGroups" in placed) == ("disaggregated", 0, False)

    wait_for(
        "the next attempt begins", lambda: len(run.status["attempts"]) == 2, REPLAN_SECONDS, run.describe
    )
    first, second = run.status["attempts"]
    assert first["reason"].startswith("Replanned: from placement disaggregated to disaggregated"), first
    saved = run.status["checkpoint"]["step"]
    assert second["fromStep"] == saved >= 10
    run.wait_for_step(saved + 3, START_SECONDS)
    placed = run.status["placement"]
    assert placed["partGroups"] < 8
    planned = placed["planned"]
    assert (planned["attempt"], planned["partGroups"]) == (1, placed["partGroups"])
    assert planned["predictedStepSeconds"] > 0
    assert run.condition("Failed").get("status") != "True"
    # What it has trained with either placement is looked through at the end: each step and prompt once.
    assert run.suspend() >= saved + 3
