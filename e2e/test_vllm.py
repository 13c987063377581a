"""vLLM in more processes than one: two in a sampler's pod beside learners that share a model, and one in each of two pods.
With `make e2e-vllm` only."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import TRAINER_IMAGE, Train
from test_killed_pods import kill_and_go_on
from training_run import ENDLESS, TrainingRun

# Beside what other runs take: vLLM is imported by three processes, which share two cores with everything else.
START_SECONDS = 600
# Where each step changes the weights, those of the version before are off by 1e-3 and more.
EXACT = 1e-6
# A random model has some of the answer now and then, so that each step changes the weights.
LEARNABLE: dict[str, Any] = {
    "task": {"rewards": [{"rule": "fraction"}]},
    "algorithm": {"optimizer": {"warmupSteps": 0}},
}
SPEC: dict[str, Any] = {
    **ENDLESS,
    **LEARNABLE,
    "learner": {"replicas": 2, "parallelism": "fsdp2"},
    "sampler": {"engine": "vllm", "tensorParallelSize": 2, "resources": {"cpu": 0.2, "memory": "4Gi"}},
    # Each step's samples are of the policy that it begins with: only rounding is between sampler and learner.
    "buffer": {"maxStaleness": 0},
}


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
    # Before the kill and after it: what the learners trained on was sampled by their own weights, in both halves.
    assert run.status["attempts"][1]["fromStep"] < run.step
    follows(run)


def follows(run: TrainingRun) -> list[dict[str, Any]]:
    """The steps of a run that has ended: each changed the weights, and was sampled by exactly those that it began with."""
    lines = run.metrics(TRAINER_IMAGE)
    assert all(line["grad_norm"] > 0 for line in lines)
    assert max(abs(line["mismatch_kl"]) for line in lines) < EXACT
    return lines


def parts(cluster: Cluster, run: TrainingRun) -> dict[str, list[str]]:
    """Processes of vLLM's in each pod of the samplers, by their titles."""
    found = {}
    for pod in run.pods("sampler"):
        name = pod["metadata"]["name"]
        place = ("exec", name, "-n", run.namespace, "-c", "ray", "--")
        titles = cluster.kubectl(*place, "ps", "-e", "-o", "args=").stdout.split()
        found[name] = [title for title in titles if title.startswith("VLLM::Worker")]
    return found


@pytest.mark.vllm
def test_a_sampler_of_two_pods_is_the_learners_policy_and_is_made_anew_as_a_whole(
    cluster: Cluster, train: Train
) -> None:
    sampler = {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2}
    resources = {"resources": {"cpu": 0.2, "memory": "4Gi"}}
    run = train("stages", ENDLESS | LEARNABLE | {"sampler": sampler | resources, "buffer": SPEC["buffer"]})
    run.wait_for_step(4, START_SECONDS)
    assert run.status["roles"]["sampler"]["ready"] == 1, "two pods are one sampler"
    before = parts(cluster, run)
    assert sorted(before.values()) == [["VLLM::Worker_PP0"], ["VLLM::Worker_PP1"]], before

    [last] = [name for name, titles in before.items() if titles == ["VLLM::Worker_PP1"]]
    cluster.kubectl("delete", "pod", last, "-n", run.namespace, "--grace-period=0", "--force")

    def anew() -> bool:
        now = {pod["metadata"]["name"] for pod in run.pods("sampler")}
        return len(now) == 2 and now.isdisjoint(before)

    wait_for("both of its pods are others", anew, 180, run.describe)
    step = run.step
    run.wait_for_step(step + 4, START_SECONDS)
    assert len(run.status["attempts"]) == 1, run.describe()
    run.suspend()
    follows(run)  # before and after, in both stages
