"""A run on real accelerators: `make e2e-gpu` on a cluster that has some."""

from __future__ import annotations

import pytest
from cluster_client import Cluster
from conftest import GPU_IMAGE, PROFILE, Train
from fake_nodes import FAKE
from test_training import START_SECONDS, TRAIN_SECONDS

ACCELERATOR = "nvidia.com/gpu"


def accelerators(cluster: Cluster) -> int:
    """GPUs that the cluster's nodes offer; those of fake nodes do not count."""
    return sum(
        int(node["status"]["allocatable"].get(ACCELERATOR, 0))
        for node in cluster.list("nodes")
        if FAKE not in (node["metadata"].get("annotations") or {})
    )


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_learners_and_sampler_on_gpus(cluster: Cluster, train: Train, engine: str) -> None:
    offered = accelerators(cluster)
    if offered < 2:
        pytest.skip(f"{offered} GPUs are offered, a learner and a sampler need one each")
    # With three, two learners average their gradients over NCCL.
    learners = 2 if offered >= 3 else 1
    taints = {"tolerations": [{"key": ACCELERATOR, "operator": "Exists", "effect": "NoSchedule"}]}
    profile = {**PROFILE, "metadata": {"name": "e2e-gpu"}}
    gpu = {"name": "gpu", "acceleratorResource": ACCELERATOR, **taints}
    profile["spec"] = {"pools": [{"name": "cpu"}, gpu], "images": {"cpu": GPU_IMAGE, "gpu": GPU_IMAGE}}
    cluster.apply(profile)
    spec = {
        "learner": {"pools": ["gpu"], "replicas": learners},
        "sampler": {"pools": ["gpu"], "engine": engine, "resources": None},
    }
    run = train("accelerated", {"profile": "e2e-gpu"} | spec)
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert run.step == 20
