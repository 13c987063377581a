"""GPU nodes that are none: Node objects kept alive by kwok, on which pods are scheduled and said to run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cluster_client import Cluster, is_ready, wait_for
from training_run import REPOSITORY

FAKE = "kwok.x-k8s.io/node"
STAGES = REPOSITORY / "e2e" / "cluster" / "kwok.yaml"


@contextmanager
def fake_nodes(
    cluster: Cluster, nodes: Mapping[str, dict[str, str]], taints: Mapping[str, list[str]], log: Path
) -> Iterator[None]:
    """Nodes with eight GPUs each, for as long as the context is open.

    Args:
        cluster: where.
        nodes: labels of each.
        taints: keys of each one's taints, with effect NoSchedule and the value `true`.
        log: what kwok writes.
    """
    command = ["kwok", "--kubeconfig", os.environ["KUBECONFIG"], "--manage-all-nodes=false"]
    command += [f"--manage-nodes-with-annotation-selector={FAKE}=fake", "--config", str(STAGES)]
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as kwok:
        try:
            for name, labels in nodes.items():
                marks = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in taints[name]]
                cluster.apply(
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "metadata": {"name": name, "labels": labels, "annotations": {FAKE: "fake"}},
                        "spec": {"taints": marks},
                        "status": {"allocatable": room, "capacity": room},
                    }
                )
            for name in nodes:
                ready = partial(_ready, cluster, name)
                wait_for(f"node {name} is ready", ready, 60, log.read_text)
            yield
        finally:
            cluster.kubectl("delete", "node", *nodes, "--ignore-not-found", check=False)
            kwok.terminate()


def _ready(cluster: Cluster, name: str) -> bool:
    return is_ready(cluster.get("node", name) or {})
