"""Runs that cannot train say why, in a sentence of their status."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from training_run import TrainingRun

Train = Callable[..., TrainingRun]
# The reason is to be in the status within half a minute of being known to the cluster.
SAY_SECONDS = 90


@pytest.mark.usefixtures("claim")
def test_wrong_image_is_named(train: Train) -> None:
    run = train("image", {"image": "registry.invalid/rltrain-trainer:none"})
    assert "image" in run.wait_for_message("registry.invalid/rltrain-trainer:none", seconds=SAY_SECONDS)


@pytest.mark.usefixtures("claim")
def test_impossible_gpu_request_is_named(train: Train) -> None:
    run = train("gpus", {"sampler": {"pool": "gpu", "resources": {"accelerators": 4}}})
    assert "gpu" in run.wait_for_message("nvidia.com/gpu", seconds=SAY_SECONDS)


def test_missing_claim_is_named(train: Train) -> None:
    run = train("claimless", {"checkpoint": {"storage": {"persistentVolumeClaim": "nowhere"}}})
    assert "nowhere" in run.wait_for_message("PersistentVolumeClaim", "nowhere", seconds=SAY_SECONDS)


@pytest.mark.usefixtures("claim")
def test_failing_user_code_is_quoted(train: Train) -> None:
    run = train("mistake", {"model": {"source": "/models/missing", "tiny": None}, "retry": {"limit": 2}})
    failed = run.wait_for_condition("Failed", 300)
    assert "/models/missing" in failed["message"]
    assert len(run.status["attempts"]) == 1, "a new attempt cannot mend a mistake"
