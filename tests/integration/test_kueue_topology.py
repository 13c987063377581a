"""Topology under a real Kueue: it looks for a rack before pods are made, and takes its gate from the pods that are.

There are nodes, on which nothing runs. KubeRay and Kubernetes' scheduler are played here, and what keeps a node's taints;
the API server itself refuses to bind a pod that still has a gate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kueue_process import QueuedCluster
from operator_inside import run
from operator_process import OperatorProcess
from played_kuberay import KubeRay, driver

SECONDS = 240.0
KUEUE = "kueue.x-k8s.io/v1beta2"
ACCELERATOR = "nvidia.com/gpu"
POOL, HOST = "example.com/pool", "kubernetes.io/hostname"
LEVELS = {"block": "example.com/block", "rack": "example.com/rack"}
GATE = "kueue.x-k8s.io/topology"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Racks:
    """A namespace with a queue over nodes of its own, some of them in racks, and an operator."""

    def __init__(self, cluster: QueuedCluster, folder: Path, url: str) -> None:
        self.kube = cluster.kube
        self.namespace = self.kube.new_namespace("topology")
        self.kuberay = KubeRay(self.kube, self.namespace)
        options = (f"--namespace={self.namespace}", f"--driver-url={url}")
        self.operator = OperatorProcess(self.kube.kubeconfig, folder / "operator.log", *options)
        self.nodes: dict[str, str] = {}
        """Racks of the nodes, by node."""
        self.node("", 1)

    def set_up(self, *with_topology: str, pools: tuple[str, ...] = ("gpu", "cpu")) -> None:
        """The profile and the queue: `with_topology` says which of its flavors, one for each pool, have one."""
        levels = {"cpu": [HOST], "gpu": [*LEVELS.values(), HOST]}
        quota = {"cpu": "100", "memory": "1000Gi", ACCELERATOR: "100"}
        resources = [{"name": name, "nominalQuota": most} for name, most in quota.items()]
        flavors = [{"name": self._named(pool), "resources": resources} for pool in pools]
        group = {"coveredResources": list(quota), "flavors": flavors}
        objects = [self._object("ClusterQueue", self.namespace, namespaceSelector={}, resourceGroups=[group])]
        for pool in pools:
            name, topology = self._named(pool), [{"nodeLabel": label} for label in levels[pool]]
            objects.append(self._object("Topology", name, levels=topology))
            named = {"topologyName": name} if pool in with_topology else {}
            objects.append(self._object("ResourceFlavor", name, nodeLabels={POOL: name}, **named))
        named_levels = [{"name": name, "label": label} for name, label in LEVELS.items()]
        gpus = {"acceleratorResource": ACCELERATOR, "topology": named_levels, "withoutAccelerators": True}
        specs = [
            {"name": pool, "nodeSelector": {POOL: self._named(pool)}} | (gpus if pool == "gpu" else {})
            for pool in pools
        ]
        profile = {"kind": "RLTrainingProfile", "metadata": {"name": self.namespace}}
        objects.append({"apiVersion": "rltrain.dev/v1alpha1", **profile, "spec": {"pools": specs}})
        self.kube.apply(*objects)
        queue = self._object("LocalQueue", "team", clusterQueue=self.namespace)
        self.kube.apply(queue, namespace=self.namespace)

    def _named(self, pool: str) -> str:
        return f"{self.namespace}-{pool}"

    def _object(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}

    def node(self, rack: str, number: int) -> str:
        """A node with one accelerator in a rack, or with none in none (empty); its name."""
        name = f"{rack or 'cpu'}-{number}-{self.namespace}"
        labels = {HOST: name, POOL: self._named("gpu" if rack else "cpu")}
        if rack:
            labels |= {LEVELS["block"]: "one", LEVELS["rack"]: rack}
        self.kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "20"} | ({ACCELERATOR: "1"} if rack else {})
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        change = json.dumps({"status": status})
        self.kube.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", change)
        # That of a node that is not ready: its admission adds it, and a controller takes it away.
        self.kube.kubectl("patch", "node", name, "--type=merge", "-p", '{"spec": {"taints": null}}')
        self.nodes[name] = rack
        return name

    def cordon(self, node: str) -> None:
        """As `kubectl cordon` and the controller of nodes do it."""
        self.kube.kubectl("cordon", node)
        self.kube.kubectl("taint", "node", node, f"{UNSCHEDULABLE}:NoSchedule")

    def submit(self, name: str, pool: str, samplers: int = 1, **learner: Any) -> None:
        """A run with two learners in the racks and so many samplers at most, one at least, in this pool."""
        self.kube.apply(
            run(
                name,
                profile=self.namespace,
                learner={"pools": ["gpu"], "replicas": 2, **learner},
                sampler={"pools": [pool], "replicas": samplers},
                scheduling={"queue": "team"},
            ),
            namespace=self.namespace,
        )

    def there(self, what: str, name: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        done = self.kube.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.there("rlrun", name).get("status", {})
        return found

    def waits(self, name: str) -> str:
        """What a run says that it waits for."""
        conditions = self.status(name).get("conditions", ())
        return next((str(one["message"]) for one in conditions if one["type"] == "Admitted"), "")

    def until_waits(self, name: str, said: str) -> None:
        """Wait until it says this."""
        try:
            self.until(lambda: said in self.waits(name), f"{name} says why it waits")
        except AssertionError as error:
            raise AssertionError(f"{name} says: {self.waits(name)}") from error

    def until_older(self, name: str) -> None:
        """Wait until what is made now is younger than a Workload: their age is in whole seconds."""
        made = datetime.fromisoformat(self.there("workload", name)["metadata"]["creationTimestamp"])
        self.until(lambda: datetime.now(UTC) - made >= timedelta(seconds=1), f"{name} is older")

    def until(self, condition: Any, what: str) -> Any:
        return self.operator.until(condition, what, SECONDS)

    def until_assigned(self, name: str, other_than: str = "") -> dict[str, set[str]]:
        """Wait until a run's Workload, with another uid than this, is admitted: its nodes, by role."""

        def assigned() -> dict[str, set[str]]:
            found = self.there("workload", name)
            if not found or found["metadata"]["uid"] == other_than:
                return {}
            admission = found.get("status", {}).get("admission", {})
            sets = admission.get("podSetAssignments", ())
            return {one["name"]: hosts(one["topologyAssignment"]) for one in sets}

        found: dict[str, set[str]] = self.until(assigned, f"{name} is admitted")
        return found

    def start(self, name: str, sampler: set[str] | None = None) -> dict[str, set[str]]:
        """The first attempt of a run begins, and its pods lose their gates; their nodes, by role. `sampler`: this is
        that of the sampler, where Kueue does not say which."""
        job = self.until(lambda: self.there("rayjob", f"{name}-1"), f"run {name} begins")
        cluster = self.kuberay.make_cluster(job)
        spec, pods = cluster["spec"], []
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            role = group["template"]["metadata"]["labels"]["rltrain.dev/role"]
            for number in range(group.get("replicas", 1)):
                pods.append((role, self.kuberay.make_pod(cluster, group, f"{role}-{number}")))
        placed: dict[str, set[str]] = {}
        for role, pod in pods:
            wanted = self._until_wanted(pod)
            (node,) = wanted & sampler if role == "sampler" and sampler else wanted
            self._bind(pod, node)
            self.kuberay.start_pod(pod)
            placed.setdefault(role, set()).add(node)
        self.kuberay.start_job(cluster)
        self.until(lambda: self.status(name).get("phase") == "Training", f"{name} trains")
        return placed

    def gated(self, name: str) -> set[str]:
        """Roles of a run whose pods are made with Kueue's gate."""
        job = self.until(lambda: self.there("rayjob", f"{name}-1"), f"run {name} begins")
        spec = job["spec"]["rayClusterSpec"]
        templates = [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
        held = [one for one in templates if one["spec"].get("schedulingGates") == [{"name": GATE}]]
        return {one["metadata"]["labels"]["rltrain.dev/role"] for one in held}

    def _until_wanted(self, pod: str) -> set[str]:
        """Wait until nobody holds a pod back: the nodes that it may go to by its selector."""

        def ready() -> dict[str, Any] | None:
            found = self.there("pod", pod)
            return None if found["spec"].get("schedulingGates") else found

        spec = self.until(ready, f"Kueue lets {pod} go")["spec"]
        selector = spec["nodeSelector"]
        nodes = self.kube.get("nodes", "-l", ",".join(f"{key}={text}" for key, text in selector.items()))
        return {str(one["metadata"]["name"]) for one in nodes["items"]}

    def _bind(self, pod: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/binding"
        self.kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))

    @property
    def gpus(self) -> set[str]:
        """The nodes with accelerators."""
        return {node for node, rack in self.nodes.items() if rack}

    def racks(self, nodes: set[str]) -> set[str]:
        return {self.nodes[node] for node in nodes}

    def clear(self) -> None:
        """Leave no nodes, and nothing that runs or waits."""
        self.operator.kill()
        self.kube.kubectl("delete", "rlrun,workloads", "--all", "-n", self.namespace, "--wait=false")
        self.kuberay.end_pods()
        self.kube.kubectl("delete", "node", *self.nodes)


def said(workload: dict[str, Any]) -> str:
    """What Kueue says of a Workload without quota; empty: nothing, or it has some."""
    conditions = workload.get("status", {}).get("conditions", ())
    return next(
        (
            str(one["message"])
            for one in conditions
            if (one["type"], one["status"]) == ("QuotaReserved", "False")
        ),
        "",
    )


def hosts(assignment: dict[str, Any]) -> set[str]:
    """Nodes of a topologyAssignment, which has names that are alike in parts."""
    assert assignment["levels"] == [HOST], "that of the nodes says it all"
    found: set[str] = set()
    for one in assignment["slices"]:
        (values,) = one["valuesPerLevel"]
        if "universal" in values:
            found.add(values["universal"])
        else:
            parts = values["individual"]
            found |= {parts.get("prefix", "") + root + parts.get("suffix", "") for root in parts["roots"]}
    return found


@pytest.fixture
def racks(queued: QueuedCluster, tmp_path: Path) -> Iterator[Racks]:
    with driver() as url:
        found = Racks(queued, tmp_path, url)
        try:
            found.operator.start()
            found.operator.until_works()
            yield found
        finally:
            found.clear()


def test_learners_come_into_one_rack_and_all_pods_where_kueue_wants_them(racks: Racks) -> None:
    racks.set_up("gpu", "cpu")
    alone, first, second = racks.node("a", 1), racks.node("b", 1), racks.node("b", 2)
    racks.submit("sums", pool="gpu", topology={"required": "rack"})
    assigned = racks.until_assigned("sums")
    assert assigned["learner"] == {first, second}
    assert assigned["sampler"] == {alone}, "of no request, in what is left"
    assert racks.gated("sums") == {"head", "learner", "sampler"}
    assert racks.start("sums") == assigned


def test_a_run_waits_for_a_rack_and_starts_when_one_has_room(racks: Racks) -> None:
    racks.set_up("gpu", pools=("gpu",))
    for rack in ("a", "b", "c"):
        racks.node(rack, 1)
    racks.submit("sums", pool="gpu", topology={"required": "rack"})
    why = (
        f"in team; needs 3 {ACCELERATOR}, all learners in one rack [couldn't assign flavors to pod set learner: "
        f'topology "{racks.namespace}-gpu" allows to fit only 1 out of 2 pod(s)'
    )
    racks.until_waits("sums", f"1st of 1 {why}")
    racks.until_older("sums")
    racks.submit("later", pool="gpu", topology={"required": "rack"})
    racks.until_waits("later", f"2nd of 2 {why}")
    assert not racks.there("rayjob", "sums-1"), "no pods are made that would wait"
    racks.node("b", 2)
    assert racks.racks(racks.start("sums")["learner"]) == {"b"}
    assert not racks.there("rayjob", "later-1")


def test_a_run_whose_node_is_cordoned_asks_anew_and_comes_into_another_rack(racks: Racks) -> None:
    racks.set_up("gpu", "cpu")
    for rack in ("a", "b"):
        for number in (1, 2):
            racks.node(rack, number)
    racks.submit("sums", pool="cpu", topology={"required": "rack"})
    before = racks.start("sums")["learner"]
    workload = racks.there("workload", "sums")["metadata"]["uid"]
    racks.cordon(min(before))
    racks.until(
        lambda: any("stoppedTime" in one for one in racks.status("sums").get("evictions", ())),
        "it is stopped",
    )
    racks.kuberay.end_pods()
    assigned = racks.until_assigned("sums", other_than=workload)
    assert racks.racks(assigned["learner"]) == {"a", "b"} - racks.racks(before)
    assert racks.start("sums") == assigned
    (eviction,) = racks.status("sums")["evictions"]
    assert (eviction["reason"], eviction["checkpoint"]) == ("NodeDrained", "written")
    (attempt,) = racks.status("sums")["attempts"]
    assert (attempt["number"], attempt["preemptions"]) == (1, 1)


def test_where_only_some_flavors_of_a_queue_have_a_topology_each_role_there_must_ask_for_one(
    racks: Racks,
) -> None:
    racks.set_up("gpu")
    racks.node("a", 1)
    racks.submit("sums", pool="cpu")
    racks.until_waits("sums", f'Flavor "{racks.namespace}-gpu" supports only TopologyAwareScheduling')


def test_samplers_that_come_and_go_are_counted_where_they_are_and_where_kueue_would_have_put_them(
    racks: Racks,
) -> None:
    racks.set_up("gpu", pools=("gpu",))
    for number in range(1, 5):
        racks.node("a", number)
    racks.submit("sums", pool="gpu", samplers=2)
    assigned = racks.until_assigned("sums")
    free = racks.gpus - assigned["learner"] - assigned["sampler"]
    assert len(free) == 1
    assert racks.gated("sums") == {"head", "learner"}, "nobody would take that of samplers away"
    placed = racks.start("sums", sampler=free)
    assert placed["learner"] == assigned["learner"]
    # One node has nothing to do: that for which there is quota.
    (more,) = racks.until(
        lambda: [one for one in racks.kube.get("workloads", "-n", racks.namespace)["items"] if said(one)],
        "no room is found for another",
    )
    assert f'topology "{racks.namespace}-gpu" doesn\'t allow to fit any of 1 pod(s)' in said(more)
