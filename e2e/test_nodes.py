"""Nodes: one that is lost while a learner is on it, and GPU nodes on which only those land that should."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_client import RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, wait_for
from conftest import SPARE, TRAINER_IMAGE, Train
from fake_nodes import fake_nodes
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, REPOSITORY

from rl_api.documents import load_documents

PROFILE_FILE = REPOSITORY / "examples" / "profile-gpu.yaml"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
GPU_NODES = {
    "fake-h100": {"nvidia.com/gpu.product": PRODUCT, "example.com/capacity": "reserved"},
    "fake-spot": {"nvidia.com/gpu.product": PRODUCT, "example.com/capacity": "spot"},
}
TAINTS = {"fake-h100": ["nvidia.com/gpu"], "fake-spot": ["nvidia.com/gpu", "example.com/spot"]}


def docker(*arguments: str) -> bool:
    """Whether docker did it: a node of kind is a container."""
    done = subprocess.run(["docker", *arguments], check=False, capture_output=True, timeout=180)
    return done.returncode == 0


@pytest.fixture
def mortal_node(cluster: Cluster, spare_node: str) -> Iterator[str]:
    """The spare node, which may be lost; it is back afterwards."""
    yield spare_node
    docker("unpause", spare_node)
    cluster.kubectl("wait", "node", spare_node, "--for=condition=Ready", "--timeout=360s", timeout=400)


@pytest.mark.long
def test_lost_node_is_named_and_the_run_goes_on_elsewhere(
    cluster: Cluster, mortal_node: str, train: Train
) -> None:
    run = train("stranded", ENDLESS | {"learner": {"pools": ["spare"]}})
    kept = run.wait_for_checkpoint(START_SECONDS)
    assert [pod["spec"]["nodeName"] for pod in run.pods("learner")] == [mortal_node]
    # Nothing on it answers any more, and no connection is closed.
    wait_for("the node is frozen", lambda: docker("pause", mortal_node), 60)  # it fails while processes begin
    run.wind_up(kept + 40)
    # The pool gets another node.
    home = run.pods("head")[0]["spec"]["nodeName"]
    cluster.kubectl("label", "node", home, f"{SPARE}=true")
    wait_for("a second attempt", lambda: len(run.status.get("attempts", [])) == 2, 180, run.describe)
    first, second = run.status["attempts"]
    assert "node" in first["reason"]
    assert "lost" in first["reason"], first["reason"]
    assert second["fromStep"] >= kept
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)


@pytest.fixture
def gpu_nodes(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """Two fake GPU nodes, the example profile for them, and its label on the real ones."""
    [(_, profile)] = load_documents(PROFILE_FILE.read_text(), str(PROFILE_FILE))
    profile["spec"]["images"] = {"cpu": TRAINER_IMAGE, "gpu": TRAINER_IMAGE}
    urgency = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "research"},
        "value": 1000,
    }
    real = [node["metadata"]["name"] for node in cluster.list("nodes")]
    cluster.kubectl("label", "node", *real, "node-role.example.com/pool=cpu", "--overwrite")
    cluster.apply(profile, urgency)
    with fake_nodes(cluster, GPU_NODES, TAINTS, tmp_path / "kwok.log"):
        yield
    cluster.kubectl("delete", "rltrainingprofile/profile-gpu", "priorityclass/research")
    cluster.kubectl("label", "node", *real, "node-role.example.com/pool-")


def plain_pod(namespace: str) -> dict[str, Any]:
    """A pod that asks for a GPU and tolerates nothing."""
    container = {
        "name": "greedy",
        "image": TRAINER_IMAGE,
        "command": ["true"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "greedy", "namespace": namespace},
        "spec": {
            "containers": [container],
            "securityContext": RESTRICTED_POD,
        },
    }


def refused(pod: dict[str, Any]) -> bool:
    """Whether the scheduler has looked at a pod and found no node."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


@pytest.mark.usefixtures("gpu_nodes")
def test_gpu_pools_take_the_roles_that_name_them_and_nothing_else(
    cluster: Cluster, namespace: str, train: Train
) -> None:
    cluster.apply(plain_pod(namespace))
    # The profile's engine is one for GPUs; here nothing is sampled.
    sampler = {"pools": ["h100-spot"], "engine": "torch", "resources": {"accelerators": 2}}
    sampler |= {"replicas": 2, "minReplicas": 2}
    gpu = train("gpus", {"profile": "profile-gpu", "sampler": sampler})
    elsewhere = {"sampler": {"pools": ["cpu"], "engine": "torch"}, "learner": {"pools": ["cpu"]}}
    cpu = train("plain", {"profile": "profile-gpu"} | elsewhere)

    def places(run: Any, samplers: int) -> dict[str, list[str]] | None:
        found: dict[str, list[str]] = {}
        for pod in run.pods():
            role = pod["metadata"]["labels"]["rltrain.dev/role"]
            found.setdefault(role, []).append(pod["spec"].get("nodeName", ""))
        there = len(found) == 3 and len(found["sampler"]) == samplers  # one comes after the other
        return found if there and all(all(each) for each in found.values()) else None

    landed = wait_for("the pods of the GPU run have nodes", lambda: places(gpu, 2), 90, gpu.describe)
    assert landed["learner"] == ["fake-h100"]
    assert landed["sampler"] == ["fake-spot"] * 2
    assert not set(landed["head"]) & set(GPU_NODES)
    requests = {
        role: gpu.pods(role)[0]["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu")
        for role in ("head", "learner", "sampler")
    }
    assert requests == {"head": None, "learner": "1", "sampler": "2"}
    landed = wait_for("the pods of the CPU run have nodes", lambda: places(cpu, 1), 90, cpu.describe)
    assert not {node for nodes in landed.values() for node in nodes} & set(GPU_NODES)
    greedy = cluster.get("pod", "greedy", namespace)
    assert greedy is not None
    assert refused(greedy), "a pod without tolerations was put on a GPU node"
    # Nothing but this run's workers and what runs on every node.
    strangers = [
        pod["metadata"]["name"]
        for pod in cluster.list("pods")
        if pod["spec"].get("nodeName") in GPU_NODES
        and pod["metadata"].get("labels", {}).get("rltrain.dev/run") != "gpus"
        and pod["metadata"].get("ownerReferences", [{}])[0].get("kind") != "DaemonSet"
    ]
    assert not strangers
