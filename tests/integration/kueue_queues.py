"""A team's queue under a real Kueue, and Workloads in it that nobody but the test owns: what Kueue does with each write."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

from kube import KubeApi

SECONDS = 120.0
ACCELERATOR = "nvidia.com/gpu"
RUN = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "run"},
    "spec": {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "checkpoint": {"storage": {"persistentVolumeClaim": "checkpoints"}},
    },
}


def pod_set(name: str, count: int, accelerators: int, least: int | None = None) -> dict[str, Any]:
    """Pods of one role; `least` of them are enough to be admitted."""
    requests = {"cpu": "1"} | ({ACCELERATOR: str(accelerators)} if accelerators else {})
    container = {"name": "ray", "image": "none", "resources": {"requests": requests}}
    found = {"name": name, "count": count}
    found["template"] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return found | ({"minCount": least} if least is not None else {})


def pod_sets(learner: int, samplers: int, least: int | None = None) -> list[dict[str, Any]]:
    """Head, one learner with that many accelerators, samplers with one each."""
    return [pod_set("head", 1, 0), pod_set("learner", 1, learner), pod_set("sampler", samplers, 1, least)]


class Queue:
    """A namespace with a queue of its own, which holds so many accelerators of one flavor."""

    def __init__(self, kube: KubeApi, accelerators: int, **cluster_queue: Any) -> None:
        """Make both queues and the flavor, and a run that owns Workloads."""
        self.kube, self.namespace = kube, kube.new_namespace("team")
        quota = [{"name": "cpu", "nominalQuota": 100}, {"name": ACCELERATOR, "nominalQuota": accelerators}]
        flavor = {"name": self.namespace, "resources": quota}
        group = {"coveredResources": ["cpu", ACCELERATOR], "flavors": [flavor]}
        spec = {"namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"}}
        spec |= {"resourceGroups": [group]} | cluster_queue
        self.kube.apply(
            self._object("ResourceFlavor", spec={"nodeLabels": {"pool": self.namespace}}),
            self._object("ClusterQueue", spec=spec),
            self._object("LocalQueue", "queue", {"clusterQueue": self.namespace}),
        )
        self.kube.apply(RUN, namespace=self.namespace)
        self.uid = self.kube.get("rlrun", "run", "-n", self.namespace)["metadata"]["uid"]

    def _object(
        self, kind: str, name: str | None = None, spec: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        metadata = {"name": name or self.namespace}
        if kind == "LocalQueue":
            metadata["namespace"] = self.namespace
        return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}

    def submit(self, name: str, priority: int, sets: list[dict[str, Any]], **annotations: str) -> None:
        """Apply a Workload of the run, by server-side apply as the operator does it."""
        owner = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "name": "run",
            "uid": self.uid,
        }
        metadata: dict[str, Any] = {"name": name, "ownerReferences": [owner | {"controller": True}]}
        metadata["annotations"] = {
            f"kueue.x-k8s.io/{key.replace('_', '-')}": value for key, value in annotations.items()
        }
        document = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}
        document["spec"] = {"queueName": "queue", "priority": priority, "podSets": sets}
        arguments = ["--server-side", "--field-manager=rltrain-operator", "-n", self.namespace, "-f", "-"]
        self.kube.kubectl("apply", *arguments, stdin=json.dumps(document))

    def touch(self, name: str) -> None:
        """Change something of a Workload that nobody reads."""
        mark = f"touched={time.time_ns()}"
        self.kube.kubectl("annotate", "--overwrite", "workload", name, mark, "-n", self.namespace)

    def workload(self, name: str) -> dict[str, Any]:
        return self.kube.get("workload", name, "-n", self.namespace, "--show-managed-fields")

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; empty where it is not there."""
        return _condition(self.workload(name), kind)

    def message(self, name: str, kind: str) -> str:
        conditions = self.workload(name)["status"]["conditions"]
        return str(next(one["message"] for one in conditions if one["type"] == kind))

    def admitted(self, name: str) -> dict[str, int] | None:
        """Pods by role of an admitted Workload; None: it has no quota."""
        return _admitted(self.workload(name))

    def used(self) -> int:
        """Accelerators that are reserved in the queue."""
        status = self.kube.get("clusterqueue", self.namespace).get("status", {})
        flavors = status.get("flavorsReservation", [])
        return sum(
            int(one["total"])
            for flavor in flavors
            for one in flavor["resources"]
            if one["name"] == ACCELERATOR
        )

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for it; what it gave."""
        deadline = time.monotonic() + SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s: {self._all()}"
            time.sleep(0.4)
        return found

    def until_admitted(self, name: str) -> dict[str, int]:
        """Wait until it has quota, and nobody wants it back."""

        def admitted() -> dict[str, int] | None:
            found = self.workload(name)
            return None if _condition(found, "Evicted")[0] == "True" else _admitted(found)

        found: dict[str, int] = self.until(admitted, f"{name} is admitted")
        return found

    def until_older(self, name: str) -> None:
        """Wait until what is admitted now was admitted later than it: Kueue orders them by whole seconds."""
        conditions = self.workload(name)["status"]["conditions"]
        since = next(one["lastTransitionTime"] for one in conditions if one["type"] == "QuotaReserved")
        admitted = datetime.datetime.fromisoformat(since)
        self.until(
            lambda: datetime.datetime.now(datetime.UTC) - admitted >= datetime.timedelta(seconds=1),
            f"{name} is older",
        )

    def until_evicted(self, name: str, reason: str = "Preempted") -> None:
        self.until(
            lambda: self.condition(name, "Evicted") == ("True", reason), f"{name} is evicted: {reason}"
        )

    def until_waits(self, name: str) -> str:
        """Wait until Kueue says why it waits, and return that."""
        self.until(lambda: self.condition(name, "QuotaReserved") == ("False", "Pending"), f"{name} waits")
        return self.message(name, "QuotaReserved")

    def patch(self, name: str, change: Any, *options: str, kind: str = "merge") -> str:
        """Patch a Workload; what was said against it, if anything."""
        arguments = ["-n", self.namespace, f"--type={kind}", "-p", json.dumps(change), *options]
        return self.kube.kubectl("patch", "workload", name, *arguments, check=False).stderr

    def patch_status(self, name: str, change: Any, *options: str, kind: str = "merge") -> str:
        return self.patch(name, change, "--subresource=status", *options, kind=kind)

    def give_back(self, name: str) -> None:
        """What the owner of an evicted Workload does when its pods are gone."""

        def given_back() -> bool:
            found = self.workload(name)
            reason = _condition(found, "Evicted")[1]
            changed = {"QuotaReserved": ("False", "Pending"), "Admitted": ("False", "NoReservation")}
            changed["Requeued"] = "True", reason
            conditions = [one for one in found["status"]["conditions"] if one["type"] not in changed]
            conditions += [condition(kind, *value) for kind, value in changed.items()]
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            said = self.patch_status(
                name, {"metadata": version, "status": {"admission": None, "conditions": conditions}}
            )
            # Kueue may have written to it since it was read: then it is read anew, as an owner does it.
            assert not said or "the object has been modified" in said, said
            return not said

        self.until(given_back, f"the quota of {name} is given back")

    def delete(self, name: str) -> None:
        self.kube.kubectl("delete", "workload", name, "-n", self.namespace)

    def _all(self) -> dict[str, Any]:
        found = self.kube.get("workloads", "-n", self.namespace)["items"]
        return {one["metadata"]["name"]: one.get("status") for one in found}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    """A condition of now."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}


def _condition(workload: dict[str, Any], kind: str) -> tuple[str, str]:
    for one in workload.get("status", {}).get("conditions", []):
        if one["type"] == kind:
            return one["status"], one["reason"]
    return "", ""


def _admitted(workload: dict[str, Any]) -> dict[str, int] | None:
    admission = workload.get("status", {}).get("admission")
    if admission is None:
        return None
    return {one["name"]: one["count"] for one in admission["podSetAssignments"]}
