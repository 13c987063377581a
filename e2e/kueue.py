"""Queues of Kueue for the scenarios: one ClusterQueue, a LocalQueue for each team, and Workloads that nobody runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cluster_client import Cluster, wait_for

API = "kueue.x-k8s.io/v1beta2"
WORKLOADS = "workloads.kueue.x-k8s.io"
"""Kubernetes has some of its own."""
PLENTY = {"memory": "64Gi"}
"""Of what the scenarios do not share."""


@contextmanager
def cluster_queue(
    cluster: Cluster, name: str, namespaces: Sequence[str], cpu: str, labels: dict[str, str] | None = None
) -> Iterator[None]:
    """A ClusterQueue with so much CPU, in which a higher priority takes what a lower one has, and queues named as it is."""
    quota = {"cpu": cpu, **PLENTY}
    cluster.apply(
        {
            "apiVersion": API,
            "kind": "ResourceFlavor",
            "metadata": {"name": name},
            "spec": {"nodeLabels": labels or {}},
        },
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {
                        "coveredResources": list(quota),
                        "flavors": [
                            {
                                "name": name,
                                "resources": [
                                    {"name": key, "nominalQuota": most} for key, most in quota.items()
                                ],
                            }
                        ],
                    }
                ],
            },
        },
        *(
            {
                "apiVersion": API,
                "kind": "LocalQueue",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterQueue": name},
            }
            for namespace in namespaces
        ),
        *(
            {
                "apiVersion": API,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"e2e-{kind}"},
                "value": value,
            }
            for kind, value in (("low", 10), ("high", 1000))
        ),
    )
    try:
        yield
    finally:
        cluster.kubectl("delete", "clusterqueue,resourceflavor", name, "--wait=false", check=False)


def urgent(cluster: Cluster, name: str, namespace: str, queue: str, cpu: str) -> None:
    """A Workload of a high priority that takes quota and has no pods, as if somebody's job were admitted."""
    container = {"name": "job", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    pod_set = {
        "name": "main",
        "count": 1,
        "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
    }
    cluster.apply(
        {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"queueName": queue, "priority": 1_000_000, "podSets": [pod_set]},
        }
    )


def is_admitted(cluster: Cluster, name: str, namespace: str) -> bool:
    """Whether a Workload has its quota."""
    found: dict[str, Any] = cluster.get(WORKLOADS, name, namespace) or {}
    facts = {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", [])}
    return facts.get("Admitted") == "True" and facts.get("Evicted") != "True"


def admitted(cluster: Cluster, name: str, namespace: str, seconds: float) -> None:
    """Returns when a Workload has its quota."""

    def why() -> str:
        return cluster.kubectl("get", WORKLOADS, "-A", check=False).stdout

    wait_for(f"Workload {name} is admitted", lambda: is_admitted(cluster, name, namespace), seconds, why)


def gone(cluster: Cluster, name: str, namespace: str) -> None:
    """Its quota is free again."""
    cluster.kubectl("delete", WORKLOADS, name, "-n", namespace, "--timeout=180s")
