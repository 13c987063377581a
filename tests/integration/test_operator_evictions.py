"""An eviction under a real Kueue whose operator dies in the middle of it: another replica ends it, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kueue_process import QueuedCluster
from operator_inside import run
from operator_process import OperatorProcess
from played_kuberay import KubeRay, driver

SECONDS = 240.0
"""For what another replica has to find out first: that the lease is free."""

KUEUE = "kueue.x-k8s.io/v1beta2"
ACCELERATOR = "nvidia.com/gpu"


class Evictions:
    """A namespace whose queue has accelerators for one run, and two replicas of the operator."""

    def __init__(self, cluster: QueuedCluster, folder: Path, url: str) -> None:
        self.kube = cluster.kube
        self.namespace = self.kube.new_namespace("evictions")
        self.kuberay = KubeRay(self.kube, self.namespace)
        options = (
            "--all-namespaces",
            "--leader-elect",
            f"--operator-namespace={self.namespace}",
            f"--driver-url={url}",
        )
        self.replicas = [
            OperatorProcess(self.kube.kubeconfig, folder / f"operator-{number}.log", *options)
            for number in (1, 2)
        ]
        quota = {"cpu": "100", "memory": "1000Gi", ACCELERATOR: "1"}
        resources = [{"name": name, "nominalQuota": most} for name, most in quota.items()]
        group = {
            "coveredResources": list(quota),
            "flavors": [{"name": self.namespace, "resources": resources}],
        }
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        about = {"apiVersion": KUEUE, "metadata": {"name": self.namespace}}
        self.kube.apply(
            about | {"kind": "ResourceFlavor"},
            about | {"kind": "ClusterQueue", "spec": spec},
            {
                "apiVersion": "rltrain.dev/v1alpha1",
                "kind": "RLTrainingProfile",
                "metadata": {"name": self.namespace},
                "spec": {"pools": [{"name": "gpu", "acceleratorResource": ACCELERATOR}, {"name": "cpu"}]},
            },
        )
        self.kube.apply(
            {
                "apiVersion": KUEUE,
                "kind": "LocalQueue",
                "metadata": {"name": "team"},
                "spec": {"clusterQueue": self.namespace},
            },
            run(
                "long",
                profile=self.namespace,
                learner={"pools": ["gpu"]},
                sampler={"pools": ["cpu"]},
                scheduling={"queue": "team"},
            ),
            namespace=self.namespace,
        )

    def there(self, what: str, name: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        done = self.kube.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.there("rlrun", "long").get("status", {})
        return found

    @property
    def evictions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status.get("evictions", [])
        return found

    def fact(self, workload: str, kind: str) -> str:
        """Status of a condition of a Workload."""
        conditions = self.there("workload", workload).get("status", {}).get("conditions", ())
        return next((str(one["status"]) for one in conditions if one["type"] == kind), "")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        first, *others = [one for one in self.replicas if one.goes_on()]  # not one that was killed
        return first.until(lambda: all(one.goes_on() for one in others) and condition(), what, SECONDS)

    @property
    def leader(self) -> OperatorProcess | None:
        return next((one for one in self.replicas if one.metrics().get("rltrain_operator_leader") == 1), None)

    def start(self, job: str) -> None:
        """The RayJob runs: its RayCluster and its head are there."""
        made = self.until(lambda: self.there("rayjob", job), f"{job} is made")
        cluster = self.kuberay.make_cluster(made)
        head = cluster["spec"]["headGroupSpec"]
        self.kuberay.start_pod(self.kuberay.make_pod(cluster, head, "head", "somewhere"))
        self.kuberay.start_job(cluster)


@pytest.fixture
def cluster(queued: QueuedCluster, tmp_path: Path) -> Iterator[Evictions]:
    """Two replicas that have begun."""
    with driver() as url:
        found = Evictions(queued, tmp_path, url)
        try:
            for replica in found.replicas:
                replica.start()
            yield found
        finally:
            for replica in found.replicas:
                replica.kill()
            found.kube.kubectl("delete", "rlrun", "--all", "-n", found.namespace, "--wait=false")


def test_the_leader_dies_in_the_middle_of_an_eviction(cluster: Evictions) -> None:
    cluster.start("long-1")
    cluster.until(lambda: cluster.status.get("phase") == "Training", "it trains")
    pod = {
        "containers": [{"name": "job", "resources": {"requests": {ACCELERATOR: "1"}}}],
        "restartPolicy": "Never",
    }
    sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    about = {"apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": "urgent"}}
    cluster.kube.apply(
        about | {"spec": {"queueName": "team", "priority": 1000, "podSets": sets}},
        namespace=cluster.namespace,
    )
    cluster.until(
        lambda: cluster.evictions and "stoppedTime" in cluster.evictions[0], "its pods are told to stop"
    )
    assert cluster.evictions[0]["checkpoint"] == "written"
    first = cluster.until(lambda: cluster.leader, "one leads")
    first.kill()
    assert cluster.fact("long", "QuotaReserved") == "True", "its pods are still there"
    cluster.kuberay.end_pods()
    cluster.until(
        lambda: cluster.fact("urgent", "Admitted") == "True", "another replica gives the quota back"
    )
    assert cluster.leader is not first
    [eviction] = cluster.until(
        lambda: "releasedTime" in cluster.evictions[0] and cluster.evictions, "it is written down"
    )
    assert eviction["step"] <= cluster.status["checkpoint"]["step"]
    waits = cluster.there("workload", "long")["status"]["conditions"]
    given_back = next(one for one in waits if one["type"] == "QuotaReserved")
    assert (given_back["status"], given_back["reason"]) == ("False", "Pending")

    cluster.kube.kubectl("delete", "workload", "urgent", "-n", cluster.namespace)
    cluster.start("long-1")
    cluster.until(lambda: cluster.status.get("phase") == "Training", "it trains again")
    [attempt] = cluster.status["attempts"]
    assert (attempt["number"], attempt["preemptions"]) == (1, 1)
    [eviction] = cluster.evictions
    assert eviction["resumedStep"] == cluster.status["checkpoint"]["step"]
    assert cluster.fact("long", "Evicted") == "False"
