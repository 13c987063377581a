"""Gangs with a real kube-apiserver and Kubernetes' own scheduler: all pods of an attempt get a node, or none does.

No KubeRay runs here: the test makes pods of the templates as that would. The operator has the chart's rights and no others.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import REPOSITORY, KubeApi, find_binaries, kuberay_definitions, our_definitions
from operator_inside import connected, run
from operator_process import OperatorProcess, Program
from ports import free_ports

SYSTEM = "rltrain-system"
NATIVE = "podgroups.scheduling.k8s.io"
POOLS = [{"name": "cpu"}, {"name": "h100", "acceleratorResource": "nvidia.com/gpu", "acceleratorsPerNode": 8}]


def definition(group: str, version: str, **spec: Any) -> dict[str, Any]:
    """The definition of a PodGroup, with the fields of its spec that we write, as its scheduler publishes them."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            # Groups of Kubernetes' own are for what it has approved.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
            },
        },
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


QUANTITIES = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        # Without what Kubernetes also takes, and nobody writes.
        "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE])?$",
        "x-kubernetes-int-or-string": True,
    },
}
COUNT = {"type": "integer", "format": "int32", "minimum": 1}
TEXT = {"type": "string"}
DEFINITIONS = {
    "volcano": definition(
        "scheduling.volcano.sh",
        "v1beta1",
        minMember=COUNT,
        minResources=QUANTITIES,
        queue=TEXT,
        priorityClassName=TEXT,
    ),
    "schedulerPlugins": definition(
        "scheduling.x-k8s.io", "v1alpha1", minMember=COUNT, minResources=QUANTITIES
    ),
}


class Scheduler(Program):
    """Kubernetes' scheduler, with its gangs."""

    def __init__(self, kube: KubeApi, folder: Path) -> None:
        (port,) = free_ports(1)
        command = [
            str(kube.binaries / "kube-scheduler"),
            f"--kubeconfig={kube.kubeconfig}",
            "--leader-elect=false",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'scheduler'}",
            f"--authentication-kubeconfig={kube.kubeconfig}",
            f"--authorization-kubeconfig={kube.kubeconfig}",
            "--feature-gates=GenericWorkload=true,GangScheduling=true",
        ]
        super().__init__(command, kube.kubeconfig, folder / "scheduler.log")


class Gangs:
    """The cluster, and who works in it."""

    def __init__(self, kube: KubeApi, folder: Path) -> None:
        self.kube, self.namespace = kube, kube.new_namespace("gangs")
        token = kube.kubectl("create", "token", "rltrain", "-n", SYSTEM).stdout.strip()
        config = yaml.safe_load(kube.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        options = ("--all-namespaces", f"--operator-namespace={SYSTEM}")
        self.operator = OperatorProcess(folder / "kubeconfig", folder / "operator.log", *options)
        self.scheduler = Scheduler(kube, folder)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return self.operator.until(condition, what, 90.0)

    def there(self, what: str, name: str) -> dict[str, Any]:
        done = self.kube.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def why(self, name: str) -> tuple[str, str]:
        """Reason and message of why the run has not all of its pods."""
        conditions = self.there("rlrun", name).get("status", {}).get("conditions", ())
        found = [(one["reason"], one["message"]) for one in conditions if one["type"] == "ClusterReady"]
        return found[0] if found else ("", "")

    def profile(self, name: str, **gang: Any) -> None:
        spec = {"pools": POOLS, "gang": gang}
        kind = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingProfile"}
        self.kube.apply(kind | {"metadata": {"name": name}, "spec": spec})

    def train(self, name: str, profile: str) -> None:
        self.kube.apply(
            run(name, profile=profile, learner={"pools": ["h100"]}, sampler={"pools": ["cpu"]}),
            namespace=self.namespace,
        )

    def node(self, name: str, **capacity: str) -> None:
        """A node without a kubelet, which is ready for pods."""
        self.kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "50"} | capacity
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        self.kube.kubectl(
            "patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status)
        )
        # As admission has put it on new nodes, and a controller takes it away from those that are ready.
        self.kube.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", check=False)

    def play_kuberay(self, job: str) -> None:
        """A RayCluster of the RayJob, and its pods."""
        made = self.until(lambda: self.there("rayjob", job), f"{job} is made")
        spec, name = made["spec"]["rayClusterSpec"], f"{job}-abcde"
        labels = {
            one: text for one, text in made["metadata"]["labels"].items() if one.startswith("rltrain.dev/")
        }
        metadata = {"name": name, "labels": labels, "ownerReferences": owner(made)}
        self.kube.apply(
            {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec},
            namespace=self.namespace,
        )
        reference = owner(self.there("raycluster", name))
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            template = group["template"]
            for number in range(group.get("replicas", 1)):
                pod = f"{name}-{group.get('groupName', 'head')}-{number}"
                metadata = template["metadata"] | {"name": pod, "ownerReferences": reference}
                document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
                self.kube.apply(document, namespace=self.namespace)
        status = {"status": {"rayClusterName": name, "jobDeploymentStatus": "Initializing"}}
        where = ("-n", self.namespace, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        self.kube.kubectl("patch", "rayjob", job, *where)

    def nodes_of_pods(self) -> list[str]:
        """Where each pod is; empty: nowhere."""
        pods = self.kube.get("pods", "-n", self.namespace)["items"]
        return sorted(pod["spec"].get("nodeName", "") for pod in pods)


def owner(of: dict[str, Any]) -> list[dict[str, Any]]:
    reference = {"apiVersion": "ray.io/v1", "kind": of["kind"], "controller": True}
    return [reference | {part: of["metadata"][part] for part in ("name", "uid")}]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    binaries, helm = find_binaries(), REPOSITORY / ".tools" / "bin" / "helm"
    if binaries is None or not (binaries / "kube-scheduler").exists() or not helm.exists():
        pytest.skip(
            "no kube-apiserver, kube-scheduler and helm here: scripts/tools apiserver node helm builds them"
        )
    folder = tmp_path_factory.mktemp("gangs")
    (folder / "kube").mkdir()
    kube = KubeApi(
        folder / "kube",
        binaries,
        "--feature-gates=GenericWorkload=true",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    )
    made: Gangs | None = None
    try:
        kube.start()
        kube.install_definitions(*our_definitions(), *kuberay_definitions())
        kube.kubectl("create", "namespace", SYSTEM)
        values = ("crds.install=false", "defaultProfile.create=false")
        sets = [part for value in values for part in ("--set", value)]
        sets += ["--set-json", 'gang.schedulers=["volcano","schedulerPlugins","kubernetes"]']
        chart = subprocess.run(
            [str(helm), "template", "rltrain", str(REPOSITORY / "charts/rltrain"), "-n", SYSTEM, *sets],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ,
        ).stdout
        kube.kubectl("apply", "--namespace", SYSTEM, "-f", "-", stdin=chart)
        made = Gangs(kube, folder)
        made.operator.start()
        made.scheduler.start()
        made.operator.until_works()
        yield made
    finally:
        if made is not None:
            made.operator.kill()
            made.scheduler.kill()
        kube.stop()


def test_a_gang_that_does_not_fit_holds_nothing_and_says_why(gangs: Gangs) -> None:
    gangs.profile("native", scheduler="kubernetes")
    gangs.node("cpu-0")
    gangs.train("sums", "native")
    gangs.play_kuberay("sums-1")
    group = gangs.there(NATIVE, "sums-1")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    pod = gangs.there("pod", "sums-1-abcde-learner-0")
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "sums-1"}
    assert not pod["spec"].get("schedulingGates")

    why = (
        "learner: no node of pool h100 takes the pod: too little nvidia.com/gpu is free (1 asked for per pod)"
    )

    def seen() -> str:
        reason, said = gangs.why("sums")
        return said if reason == "Unschedulable" and said.startswith(why) else ""

    # It tells of one pod after the other, and may hear of the pods before it hears what the node has.
    sentence = gangs.until(seen, "the scheduler has looked at the learner's pod")
    assert sentence.endswith("; Kubernetes' scheduler places all 3 pods of the attempt or none")
    assert gangs.nodes_of_pods() == ["", "", ""]
    gangs.node("gpu-0", **{"nvidia.com/gpu": "8"})
    gangs.until(lambda: all(gangs.nodes_of_pods()), "all pods have nodes")
    assert "gpu-0" in gangs.nodes_of_pods()


def test_its_pod_group_goes_with_the_attempt(gangs: Gangs) -> None:
    gangs.profile("native", scheduler="kubernetes")
    gangs.train("lost", "native")
    gangs.until(lambda: gangs.there("rayjob", "lost-1"), "it begins")
    assert gangs.there(NATIVE, "lost-1")
    gangs.kube.kubectl("delete", "rayjob", "lost-1", "-n", gangs.namespace)

    def gone() -> bool:
        group = gangs.there(NATIVE, "lost-1")
        return not group or "deletionTimestamp" in group["metadata"]

    gangs.until(gone, "its PodGroup is deleted")
    gangs.until(lambda: gangs.there(NATIVE, "lost-2"), "the next attempt has one of its own")


@pytest.mark.parametrize("scheduler", DEFINITIONS)
def test_a_run_waits_for_its_scheduler_to_be_installed(gangs: Gangs, scheduler: str) -> None:
    name, document = scheduler.lower(), DEFINITIONS[scheduler]
    group, version = document["spec"]["group"], document["spec"]["versions"][0]["name"]
    gangs.profile(name, scheduler=scheduler)
    gangs.train(name, name)
    gangs.until(lambda: gangs.why(name)[0] == "GangSchedulerMissing", "it is refused")
    wanted = f"profile {name} has gang.scheduler {scheduler}, and this cluster has no PodGroup in {group}/{version}: "
    assert gangs.why(name)[1].startswith(wanted)
    assert not gangs.there("rayjob", f"{name}-1")
    gangs.kube.apply(document)
    gangs.kube.wait_for_definitions(f"crd/podgroups.{group}")
    job = gangs.until(lambda: gangs.there("rayjob", f"{name}-1"), "it begins")
    found = gangs.kube.get(f"podgroups.{group}", "-n", gangs.namespace)["items"]
    assert [one["spec"]["minMember"] for one in found] == [3]
    assert found[0]["spec"]["minResources"]["nvidia.com/gpu"] == "1"
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    marks = head["metadata"]["labels"] | head["metadata"].get("annotations", {})
    assert found[0]["metadata"]["name"] in marks.values()


def test_a_server_without_gangs_is_found_out(kube: KubeApi) -> None:
    """The API group is there for priority classes, whatever else it has."""

    async def ask() -> list[bool]:
        api = await connected(kube)
        try:
            asked = (("v1", "priorityclasses"), ("v1alpha2", "podgroups"), ("v1", "podgroups"))
            return [await api.has_group("scheduling.k8s.io", *one) for one in asked]
        finally:
            await api.close()

    assert asyncio.run(ask()) == [True, False, False]
