"""A gang of Kubernetes' own scheduler: what does not fit holds nothing, names the pool, and starts when a node joins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import SPARE, TRAINER_IMAGE, Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import TrainingRun

pytestmark = pytest.mark.long

POOL = "rltrain.dev/e2e-joined"
PROFILE: dict[str, Any] = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingProfile",
    "metadata": {"name": "e2e-gang"},
    "spec": {
        "gang": {"scheduler": "kubernetes"},
        "pools": [
            {"name": "cpu"},
            {
                "name": "joined",
                "nodeSelector": {POOL: "true"},
                "tolerations": [{"key": SPARE, "operator": "Exists", "effect": "NoSchedule"}],
            },
        ],
        "images": {"cpu": TRAINER_IMAGE},
    },
}


@pytest.fixture
def gangs(cluster: Cluster) -> Iterator[None]:
    """A profile whose runs are gangs."""
    if cluster.kubectl("get", "podgroups.scheduling.k8s.io", "-A", check=False).returncode:
        pytest.skip("this cluster's Kubernetes has no PodGroups; that of scripts/cluster up has")
    cluster.apply(PROFILE)
    yield
    cluster.kubectl("delete", "rltrainingprofile/e2e-gang")


def nodes_of_pods(run: TrainingRun) -> dict[str, str]:
    """Node of each role's pod; empty: it has none."""
    return {
        pod["metadata"]["labels"]["rltrain.dev/role"]: pod["spec"].get("nodeName", "") for pod in run.pods()
    }


def test_a_gang_that_does_not_fit_holds_nothing_and_starts_when_a_node_joins(
    cluster: Cluster, gangs: None, spare_node: str, train: Train
) -> None:
    """Head and sampler would have room at once; the learner's pool has no node."""
    run = train(
        "together", {"profile": "e2e-gang", "learner": {"pools": ["joined"]}, "stop": {"maxSteps": 5}}
    )
    sentence = run.wait_for_message("learner: no node of pool joined", "all 3 pods", seconds=START_SECONDS)
    assert sentence.endswith("Kubernetes' scheduler places all 3 pods of the attempt or none"), sentence
    assert nodes_of_pods(run) == {"head": "", "learner": "", "sampler": ""}
    assert run.condition("ClusterReady")["reason"] == "Unschedulable"

    cluster.kubectl("label", "node", spare_node, f"{POOL}=true")
    try:
        wait_for("all pods have nodes", lambda: all(nodes_of_pods(run).values()), 120, run.describe)
        assert nodes_of_pods(run)["learner"] == spare_node
        run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    finally:
        cluster.kubectl("label", "node", spare_node, f"{POOL}-")
    [attempt] = run.status["attempts"]
    assert attempt["number"] == 1, "it waited, and did not fail"

    def groups() -> list[dict[str, Any]]:
        return cluster.list("podgroups.scheduling.k8s.io", run.namespace)

    wait_for("its PodGroup is gone with it", lambda: not groups(), 60, run.describe)
