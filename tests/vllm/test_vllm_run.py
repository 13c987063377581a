"""A whole run with vLLM as its engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_runs import LEARNING, QUICKSTART, rltrain, train


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_quickstart_learns_with_vllm(staleness: int, tmp_path: Path):
    changes = {**LEARNING, "sampler.engine": "vllm", "buffer.maxStaleness": staleness}
    steps = train(tmp_path / "out", changes, 12)
    assert steps[-1].staleness_max <= staleness
    if not staleness:
        # Sampler and learner compute the same policy: only rounding is between them.
        assert max(abs(step.mismatch_kl) for step in steps) < 1e-6


@pytest.mark.parametrize("size", ["tensorParallelSize", "pipelineParallelSize"])
def test_a_sampler_of_two_parts_is_the_learners_policy(size: str, tmp_path: Path):
    """Each part in a process of its own, on a core of its own where there are two."""
    changes = {
        "sampler.engine": "vllm",
        f"sampler.{size}": "2",
        "sampler.maxModelLen": "48",
        "buffer.maxStaleness": "0",
        "warmStart.maxSteps": "5",
        "task.evaluation": "null",
    }
    steps = train(tmp_path / "out", changes, 3)
    assert max(abs(step.mismatch_kl) for step in steps) < 1e-6


def test_a_model_that_cannot_be_divided_is_said_in_a_sentence(tmp_path: Path):
    done = rltrain(
        "run", str(QUICKSTART), "--out", str(tmp_path / "out"), "--set", "sampler.engine=vllm",
        "--set", "sampler.tensorParallelSize=3",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert "spec.sampler.tensorParallelSize: found 3, allowed with this model: " in done.stderr


def test_a_model_that_vllm_cannot_run_is_said_in_a_sentence(tmp_path: Path):
    done = rltrain(
        "run", str(QUICKSTART), "--out", str(tmp_path / "out"), "--set", "sampler.engine=vllm",
        "--set", "model.tiny.heads=8", "--set", "model.tiny.kvHeads=8",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert "vLLM cannot open it" in done.stderr
