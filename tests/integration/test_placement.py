"""Where the rendered pods go: a real kube-scheduler places them on nodes on which nothing runs, and hands out devices.

An API server of its own, as its scheduler would place the pods of other tests too.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import COMMAND_SECONDS, STOP_SECONDS, KubeApi, find_binaries, kuberay_definitions
from operator_worlds import groups, make_plan, make_profile

from rl_operator.decide.diagnose import pods_problems
from rl_operator.model.parse import parse_pod
from rl_operator.model.seen import World
from rl_operator.plan.effective import Effective
from rl_operator.render.objects import run_objects
from rl_operator.render.rayjob import ray_job

ZONE, RACK, CAPACITY = "topology.kubernetes.io/zone", "example.com/rack", "example.com/capacity"
LEVELS = [{"name": "zone", "label": ZONE}, {"name": "rack", "label": RACK}]
SPOT, OWNED = (
    {
        "name": name,
        "nodeSelector": {CAPACITY: name},
        "topology": LEVELS,
        "tolerations": [{"key": "example.com/spot", "operator": "Exists"}] if name == "spot" else [],
        "spot": name == "spot",
    }
    for name in ("spot", "owned")
)
SEVENTH = "device.attributes['gpu.example.com'].profile == '1g.10gb'"
MIG = {
    "name": "mig",
    "nodeSelector": {CAPACITY: "mig"},
    "deviceClass": {"name": "mig.example.com", "selectors": [SEVENTH]},
}
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "mig.example.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
}


class Cluster:
    """Nodes, which are those of one test, and pods that a scheduler puts on them."""

    def __init__(self, kube: KubeApi) -> None:
        self.kube = kube
        self._numbers = itertools.count()
        self.namespace = ""

    def node(self, name: str, room: int, **labels: str) -> None:
        """A node with room for so many pods; `labels` without their prefixes."""
        prefixed = {
            {"zone": ZONE, "rack": RACK, "capacity": CAPACITY}[key]: one for key, one in labels.items()
        }
        spot = (
            [{"key": "example.com/spot", "effect": "NoSchedule"}] if labels.get("capacity") == "spot" else []
        )
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | prefixed},
                "spec": {"taints": spot},
            }
        )
        amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": str(room)}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        change = json.dumps({"status": status})
        self.kube.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", change)

    def pod(self, effective: Effective, role: str) -> str:
        """Another pod of a role, as KubeRay makes it of the group's template; returns its name."""
        template = groups(effective)[role]["template"]
        name = f"{role}-{next(self._numbers)}"
        metadata = template["metadata"] | {"name": name}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self.kube.apply(pod, namespace=self.namespace)
        return name

    def placed(self, effective: Effective, role: str) -> str:
        """The node of another pod of a role."""
        name = self.pod(effective, role)
        found: str = until(lambda: self.get(name)["spec"].get("nodeName"), f"{name} has a node")
        return found

    def unplaced(self, name: str) -> dict[str, Any]:
        """A pod for which the scheduler has found no node."""

        def refused() -> dict[str, Any] | None:
            pod = self.get(name)
            reasons = [one.get("reason") for one in pod["status"].get("conditions", ())]
            return pod if "Unschedulable" in reasons else None

        found: dict[str, Any] = until(refused, f"{name} finds no node")
        return found

    def get(self, pod: str) -> dict[str, Any]:
        return self.kube.get("pod", pod, "-n", self.namespace)

    def delete(self, kind: str, name: str) -> None:
        self.kube.kubectl("delete", kind, name, "-n", self.namespace, "--force", "--grace-period=0")


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + COMMAND_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.4)
    return found


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """An API server with a scheduler, and with the controller that makes claims of their templates."""
    binaries, folder = find_binaries(), tmp_path_factory.mktemp("scheduled")
    programs = ("kube-scheduler", "kube-controller-manager")
    if binaries is None or not all((binaries / name).exists() for name in programs):
        pytest.skip(
            f"no {' or '.join(programs)} here: scripts/tools {' '.join(programs)} apiserver builds them"
        )
    # It taints nodes that are made until somebody reports them ready, as no kubelet does here.
    kube = KubeApi(folder, binaries, "--disable-admission-plugins=TaintNodesByCondition")
    running: list[subprocess.Popen[bytes]] = []
    try:
        kube.start()
        for name, options in zip(programs, ((), ("--controllers=resourceclaim-controller",)), strict=True):
            common = (f"--kubeconfig={kube.kubeconfig}", "--leader-elect=false", "--secure-port=0")
            with Path(folder / f"{name}.log").open("ab") as log:
                command = [str(binaries / name), *common, *options]
                running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        yield kube
    finally:
        for process in running:
            process.kill()
            process.wait(STOP_SECONDS)
        kube.stop()


@pytest.fixture
def cluster(scheduled: KubeApi) -> Iterator[Cluster]:
    made = Cluster(scheduled)
    made.namespace = scheduled.new_namespace("placement")
    yield made
    scheduled.kubectl("delete", "pods", "--all", "-n", made.namespace, "--force", "--grace-period=0")
    scheduled.kubectl("delete", "nodes", "--all")


def planned(spec: dict[str, Any], *pools: dict[str, Any]) -> Effective:
    return make_plan(spec, make_profile(default=True, pools=[*pools, {"name": "cpu"}]))


def test_spot_first_and_what_is_owned_where_spot_is_short(cluster: Cluster) -> None:
    cluster.node("spot", 2, capacity="spot")
    cluster.node("owned", 8, capacity="owned")
    cluster.node("elsewhere", 8)
    run = planned({"sampler": {"replicas": 4, "pools": ["spot", "owned"]}}, SPOT, OWNED)
    names = [cluster.pod(run, "sampler") for _ in range(4)]
    nodes = Counter(
        until(lambda name=name: cluster.get(name)["spec"].get("nodeName"), "it has a node") for name in names
    )
    assert nodes == {"spot": 2, "owned": 2}
    # The cloud takes the node back: what comes in the place of its pods goes on where there is room.
    cluster.delete("node", "spot")
    assert cluster.placed(run, "sampler") == "owned"
    cluster.node("spot-again", 2, capacity="spot")
    assert cluster.placed(run, "sampler") == "spot-again", "and to spot nodes as soon as there are some"


@pytest.mark.parametrize(("topology", "racks"), [({"required": "rack"}, 1), (None, 2)])
def test_learners_stay_in_one_rack_rather_than_in_the_pool_they_like_more(
    cluster: Cluster, topology: dict[str, str] | None, racks: int
) -> None:
    for rack in ("a", "b"):
        for capacity in ("spot", "owned"):
            cluster.node(f"{capacity}-{rack}", 1, capacity=capacity, rack=rack)
    spec = {"learner": {"replicas": 2, "pools": ["spot", "owned"], "topology": topology}}
    run = planned(spec, SPOT, OWNED)
    found = [cluster.placed(run, "learner") for _ in range(2)]
    assert len({name[-1] for name in found}) == racks, found


def test_a_rack_that_is_full_is_waited_for_and_the_run_says_so(cluster: Cluster) -> None:
    for rack, room in (("a", 1), ("b", 1)):
        cluster.node(f"owned-{rack}", room, capacity="owned", rack=rack)
    cluster.node("owned-of-no-rack", 8, capacity="owned")
    required = {"learner": {"replicas": 2, "pools": ["owned"], "topology": {"required": "rack"}}}
    run = planned(required, OWNED)
    assert cluster.placed(run, "learner") in ("owned-a", "owned-b")
    pod = parse_pod(cluster.unplaced(cluster.pod(run, "learner")))
    (found,) = pods_problems([pod], World(run={"metadata": {}}), run.roles)
    assert found.reason == "Unschedulable"
    assert (
        "the rack in which others of the learner are is full, or nodes lack its label example.com/rack"
        in found.message
    )
    preferred = {"learner": {"replicas": 2, "pools": ["owned"], "topology": {"preferred": "rack"}}}
    assert cluster.placed(planned(preferred, OWNED), "learner") in ("owned-a", "owned-b", "owned-of-no-rack")


def test_learners_are_near_each_other_where_there_is_room(cluster: Cluster) -> None:
    for rack in ("a", "b", "c"):
        for number in range(2):
            cluster.node(f"owned-{number}-{rack}", 1, capacity="owned", rack=rack)
    spec = {"learner": {"replicas": 4, "pools": ["owned"], "topology": {"preferred": "rack"}}}
    run = planned(spec, OWNED)
    racks = [cluster.placed(run, "learner")[-1] for _ in range(4)]
    assert sorted(Counter(racks).values()) == [2, 2], racks


def test_samplers_are_spread_over_zones_as_far_as_there_is_room(cluster: Cluster) -> None:
    for number in range(4):
        cluster.node(f"east-{number}", 1, capacity="owned", zone="east")
    cluster.node("west-0", 3, capacity="owned", zone="west")
    spec = {"sampler": {"replicas": 7, "pools": ["owned"], "topology": {"spread": "zone"}}}
    run = planned(spec, OWNED)
    zones = [cluster.placed(run, "sampler")[:4] for _ in range(7)]
    assert Counter(zones[:6]) == {"east": 3, "west": 3}
    assert zones[6] == "east", "a zone that is full keeps nobody waiting"


def test_devices_of_a_class_are_claimed_and_counted(cluster: Cluster) -> None:
    cluster.node("mig", 8, capacity="mig")
    devices = [
        {"name": f"gpu-{number}", "attributes": {"profile": {"string": profile}}}
        for number, profile in enumerate(("1g.10gb", "1g.10gb", "7g.80gb", "1g.10gb"))
    ]
    node = cluster.kube.get("node", "mig")["metadata"]
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "mig-devices", "ownerReferences": [owner_of(node)]},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "mig",
            "pool": {"name": "mig", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    cluster.kube.apply(DEVICE_CLASS, slice_)
    run = planned(
        {
            "sampler": {"replicas": 2, "pools": ["mig"], "tensorParallelSize": 2},
            "learner": {"pools": ["cpu"]},
        },
        MIG,
    )
    made = [one for one in run_objects(run) if one["kind"] == "ResourceClaimTemplate"]
    for one in made:
        one["metadata"] |= {"namespace": cluster.namespace}
        del one["metadata"]["ownerReferences"]
    cluster.kube.apply(*made)
    assert cluster.placed(run, "sampler") == "mig"
    (claim,) = cluster.kube.get("resourceclaims", "-n", cluster.namespace)["items"]
    results = claim["status"]["allocation"]["devices"]["results"]
    assert len(results) == 2
    assert {one["device"] for one in results} < {"gpu-0", "gpu-1", "gpu-3"}, "none of another size"
    pod = parse_pod(cluster.unplaced(cluster.pod(run, "sampler")))
    (found,) = pods_problems([pod], World(run={"metadata": {}}), run.roles)
    assert "too few devices are free (2 of class mig.example.com asked for per pod)" in found.message
    # What can never be chosen by, the API server says, and with it the run (condition ClusterReady).
    wrong = MIG | {"deviceClass": {"name": "mig.example.com", "selectors": ["device.is(big)"]}}
    refused = planned({"sampler": {"pools": ["mig"]}, "learner": {"pools": ["cpu"]}}, wrong)
    (template,) = [one for one in run_objects(refused) if one["kind"] == "ResourceClaimTemplate"]
    template["metadata"]["namespace"] = cluster.namespace
    done = cluster.kube.kubectl("create", "-f", "-", stdin=json.dumps(template), check=False)
    assert "spec.spec.devices.requests[0].exactly.selectors[0].cel.expression" in done.stderr


def owner_of(node: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"], "controller": True}


def test_kuberay_takes_it_all(scheduled: KubeApi) -> None:
    """Nothing of a template is dropped by KubeRay's definitions."""
    scheduled.install_definitions(*kuberay_definitions())
    mig = MIG | {"topology": LEVELS}
    spec = {
        "sampler": {"pools": ["mig"], "topology": {"spread": "zone"}},
        "learner": {"topology": {"required": "rack"}},
    }
    job = ray_job(planned(spec, mig), 1)
    namespace = scheduled.new_namespace("kuberay")
    job["metadata"] = {"name": "sums-1"}
    scheduled.kubectl("create", "--validate=strict", "-n", namespace, "-f", "-", stdin=json.dumps(job))
    kept = scheduled.get("rayjob", "sums-1", "-n", namespace)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    for group, made in zip(kept, job["spec"]["rayClusterSpec"]["workerGroupSpecs"], strict=True):
        for part in ("affinity", "topologySpreadConstraints", "resourceClaims"):
            assert group["template"]["spec"].get(part) == made["template"]["spec"].get(part)
        resources = made["template"]["spec"]["containers"][0]["resources"]
        assert group["template"]["spec"]["containers"][0]["resources"]["claims"] == resources["claims"]
