"""Pods that die while a run trains: head and learner end the attempt, and the next one begins at the checkpoint."""

from __future__ import annotations

import json

import pytest
from cluster_client import Cluster, wait_for
from conftest import OBJECT_STORE_IMAGE, TRAINER_IMAGE, Train
from object_store import BUCKET, SECRET, serve_objects
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, TrainingRun


@pytest.mark.long
def test_killed_learner_means_an_attempt_from_the_checkpoint(train: Train) -> None:
    """Each learner has half of the model, so that the one that is left has nothing to go on with."""
    learner = {"replicas": 2, "parallelism": "fsdp2"}
    kill_and_go_on(train("bereft", ENDLESS | {"learner": learner}), "learner")


@pytest.mark.long
def test_killed_head_means_an_attempt_from_the_object_store(
    cluster: Cluster, namespace: str, train: Train
) -> None:
    serve_objects(cluster, namespace, OBJECT_STORE_IMAGE, TRAINER_IMAGE)
    storage = {"persistentVolumeClaim": None, "s3": BUCKET}
    run = train("beheaded", ENDLESS | {"secrets": [SECRET], "checkpoint": {"storage": storage}})
    kill_and_go_on(run, "head")  # its disk, with the run folder, is gone with it
    summary = json.loads(run.read_file("summary.json", TRAINER_IMAGE))
    assert summary["steps"] == run.step
    assert "</html>" in run.read_file("report.html", TRAINER_IMAGE)
    assert json.loads(run.read_file("final/config.json", TRAINER_IMAGE))["model_type"] == "qwen2"


def kill_and_go_on(
    run: TrainingRun, role: str, start_seconds: float = START_SECONDS, steps: int = 40
) -> None:
    """Kill a pod after a checkpoint, and see the run end in a second attempt that began there, so many steps later."""
    kept = run.wait_for_checkpoint(start_seconds)
    run.kill_pod(role)
    run.wind_up(kept + steps)
    wait_for("a second attempt", lambda: len(run.status.get("attempts", [])) == 2, 240, run.describe)
    first, second = run.status["attempts"]
    assert first["reason"], "the first attempt does not say why it ended"
    assert second["fromStep"] >= kept
    run.wait_for_condition("Succeeded", start_seconds + TRAIN_SECONDS)
