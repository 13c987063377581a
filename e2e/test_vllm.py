"""Learners that share a model, and a sampler whose vLLM divides it over two processes: with `make e2e-vllm` only."""

from __future__ import annotations

import pytest
from cluster_client import Cluster
from conftest import TRAINER_IMAGE, Train
from test_killed_pods import kill_and_go_on
from training_run import ENDLESS

# Beside what other runs take: vLLM is imported by three processes, which share two cores with everything else.
START_SECONDS = 600
SPEC = ENDLESS | {
    "learner": {"replicas": 2, "parallelism": "fsdp2"},
    "sampler": {"engine": "vllm", "tensorParallelSize": 2, "resources": {"cpu": 0.2, "memory": "4Gi"}},
    # Each step's samples are of the policy that it begins with: only rounding is between sampler and learner.
    "buffer": {"maxStaleness": 0},
}
ROUNDING = 1e-5


@pytest.mark.vllm
@pytest.mark.alone
def test_sharded_learners_train_with_a_divided_sampler_and_a_killed_one_is_replaced(
    cluster: Cluster, train: Train
) -> None:
    run = train("divided", SPEC)
    run.wait_for_step(1, START_SECONDS)
    roles = run.status["roles"]
    assert (roles["learner"]["ready"], roles["sampler"]["ready"]) == (2, 1)
    (sampler,) = run.pods("sampler")
    place = ("exec", sampler["metadata"]["name"], "-n", run.namespace, "-c", "ray", "--")
    titles = cluster.kubectl(*place, "ps", "-e", "-o", "args=").stdout.split()
    assert sorted(title for title in titles if title.startswith("VLLM::")) == [
        "VLLM::Worker_TP0",
        "VLLM::Worker_TP1",
    ]
    kill_and_go_on(run, "learner", START_SECONDS, steps=20)
    mismatch = {line["step"]: line["mismatch_kl"] for line in run.metrics(TRAINER_IMAGE)}
    # Before the kill and after it: what the learners trained on was sampled by their own weights, in both halves.
    assert run.status["attempts"][1]["fromStep"] < run.step == len(mismatch)
    assert max(abs(value) for value in mismatch.values()) < ROUNDING
