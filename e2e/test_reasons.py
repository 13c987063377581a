"""Runs that cannot train say why, in a sentence of their status."""

from __future__ import annotations

from conftest import Train

# The reason is to be in the status within half a minute of being known to the cluster.
SAY_SECONDS = 90


def test_wrong_image_is_named(train: Train) -> None:
    run = train("image", {"image": "registry.invalid/rltrain-trainer:none"})
    assert "image" in run.wait_for_message("registry.invalid/rltrain-trainer:none", seconds=SAY_SECONDS)


def test_impossible_gpu_request_is_named(train: Train) -> None:
    run = train("gpus", {"sampler": {"pools": ["gpu"], "resources": {"accelerators": 8}}})
    assert "gpu" in run.wait_for_message("nvidia.com/gpu", seconds=SAY_SECONDS)


def test_missing_claim_is_named(train: Train) -> None:
    run = train("claimless", {"checkpoint": {"storage": {"persistentVolumeClaim": "nowhere"}}})
    assert "nowhere" in run.wait_for_message("PersistentVolumeClaim", "nowhere", seconds=SAY_SECONDS)


def test_failing_user_code_is_quoted(train: Train) -> None:
    # A function that is there, and fails as soon as it is called with a prompt, a completion and an answer.
    reward = {"rule": "function", "function": "re:sub"}
    run = train("mistake", {"task": {"rewards": [reward]}, "retry": {"limit": 2}})
    failed = run.wait_for_condition("Failed", 300)
    assert "re:sub" in failed["message"]
    assert "TypeError" in failed["message"]
    assert len(run.status["attempts"]) == 1, "a new attempt cannot mend a mistake"


def test_out_of_memory_is_named(train: Train) -> None:
    run = train("hungry", {"sampler": {"resources": {"memory": "500Mi"}}, "retry": {"limit": 0}})
    # Before it is there, a message about a node without room may name memory, too.
    run.wait_for_message("raise sampler.resources.memory", "500Mi", seconds=300)
