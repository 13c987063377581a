"""Pods that die while a run trains: head and learner end the attempt, and the next one begins at the checkpoint."""

from __future__ import annotations

import pytest
from cluster_client import wait_for
from conftest import Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS


@pytest.mark.parametrize("role", ["head", "learner"])
def test_killed_pod_means_an_attempt_from_the_checkpoint(train: Train, role: str) -> None:
    run = train("bereft", ENDLESS)
    kept = run.wait_for_checkpoint(START_SECONDS)
    run.kill_pod(role)
    run.wind_up(kept + 40)
    wait_for("a second attempt", lambda: len(run.status.get("attempts", [])) == 2, 240, run.describe)
    first, second = run.status["attempts"]
    assert first["reason"], "the first attempt does not say why it ended"
    assert second["fromStep"] >= kept
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
