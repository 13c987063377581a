"""The operator with the rights of the chart does all that it can do; an API server's audit log says which of them it used.

A server of its own, as the log is: whoever else works with one would be in it.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import played_kueue
import pytest
import yaml
from kube import KubeApi, find_binaries, kuberay_definitions
from operator_inside import run
from operator_process import OperatorProcess

from rl_operator.model.workload import BOOST_ANNOTATION

ROOT = Path(__file__).parents[2]
SYSTEM = "rltrain-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:rltrain"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
ADMISSION = {
    ("runs", "rltrain.dev", f"{kind}/finalizers", "", "update")
    for kind in ("rltrainingruns", "rlpolicyservices")
}
"""Not asked for in a request: an admission plug-in asks whether the operator might. Tried on its own."""

Right = tuple[str, str, str, str, str]
"""Where (runs: where runs are; system: beside the operator), API group, resource, name if it matters, verb."""


class Cluster:
    """An API server that keeps an audit log, with the chart, and an operator with the chart's rights."""

    def __init__(self, kube: KubeApi, log: Path, folder: Path) -> None:
        self.kube, self.log = kube, log
        token = kube.kubectl("create", "token", "rltrain", "-n", SYSTEM).stdout.strip()
        config = yaml.safe_load(kube.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        options = ("--all-namespaces", "--leader-elect", f"--operator-namespace={SYSTEM}")
        self.operator = OperatorProcess(folder / "kubeconfig", folder / "operator.log", *options)
        self.namespace = kube.new_namespace("team")

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kube.apply(*documents, namespace=self.namespace)

    def train(self, name: str, **spec: Any) -> None:
        self.apply(run(name, **({"profile": None} | spec)))

    def there(self, what: str, name: str) -> dict[str, Any]:
        done = self.kube.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def reasons(self, name: str) -> list[str]:
        status = self.there("rlrun", name).get("status", {})
        return [one["reason"] for one in status.get("conditions", ())]

    def change(self, what: str, name: str, change: dict[str, Any], *more: str) -> None:
        where = (what, name, "-n", self.namespace, "--type=merge", "-p", json.dumps(change))
        self.kube.kubectl("patch", *where, *more)

    def status(self, what: str, name: str, **status: Any) -> None:
        self.change(what, name, {"status": status}, "--subresource=status")

    def delete(self, what: str, name: str) -> None:
        self.kube.kubectl("delete", what, name, "-n", self.namespace, "--wait=false")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return self.operator.until(condition, what, 90.0)

    def cluster_of(self, job: str) -> str:
        """KubeRay has made the RayCluster of a RayJob, and its head; returns its name."""
        made = self.until(lambda: self.there("rayjob", job), f"{job} is made")
        spec, labels, name = made["spec"]["rayClusterSpec"], made["metadata"]["labels"], f"{job}-abcde"

        def owner(of: dict[str, Any]) -> list[dict[str, Any]]:
            reference = {"apiVersion": "ray.io/v1", "kind": of["kind"], "controller": True}
            return [reference | {part: of["metadata"][part] for part in ("name", "uid")}]

        metadata = {"name": name, "labels": labels, "ownerReferences": owner(made)}
        self.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec})
        template = spec["headGroupSpec"]["template"]
        metadata = template["metadata"] | {"name": f"{name}-head"}
        metadata["ownerReferences"] = owner(self.there("raycluster", name))
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        self.status("rayjob", job, rayClusterName=name, jobDeploymentStatus="Initializing")
        return name

    def used(self) -> set[Right]:
        """Rights that the operator has used."""
        return {right for event in self.events() for right in rights_of(event)}

    def events(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        assert {event["user"]["username"] for event in found} == {ACCOUNT}
        return found

    def granted(self) -> set[Right]:
        """Rights that the roles of the chart give."""
        found: set[Right] = set()
        for where, role in (
            ("runs", "rltrain-cluster"),
            ("runs", "rltrain-runs"),
            ("system", "rltrain-leader"),
        ):
            kind = ("clusterrole", role) if where == "runs" else ("role", role, "-n", SYSTEM)
            for rule in self.kube.get(*kind)["rules"]:
                names = rule.get("resourceNames", [""])
                found |= {
                    (where, group, resource, name, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for name in names
                    for verb in rule["verbs"]
                }
        return found


def rights_of(event: dict[str, Any]) -> Iterator[Right]:
    """What a request needed. One that applies what was not there needs two."""
    about = event.get("objectRef")
    if about is None or "resource" not in about:
        return  # what the server can do: everybody may ask
    where = "system" if about.get("namespace") == SYSTEM else "runs"
    part = f"/{about['subresource']}" if about.get("subresource") else ""
    named = about["name"] if (where, about["resource"], event["verb"]) == ("system", "secrets", "get") else ""
    resource = f"{about['resource']}{part}"
    yield where, about.get("apiGroup", ""), resource, named, event["verb"]
    if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
        yield where, about.get("apiGroup", ""), resource, named, "create"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    tmp_path = tmp_path_factory.mktemp("rights")
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(
            "no kube-apiserver here: scripts/tools apiserver builds it, or KUBEBUILDER_ASSETS names it"
        )
    if not played_kueue.DEFINITIONS.is_dir():
        pytest.skip("no definitions of Kueue here: scripts/tools kueue-crds gets them")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    folder, log = tmp_path / "kube", tmp_path / "audit.log"
    folder.mkdir()
    kube = KubeApi(
        folder,
        binaries,
        f"--audit-policy-file={tmp_path / 'policy.yaml'}",
        f"--audit-log-path={log}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    made: Cluster | None = None
    try:
        kube.start()
        kube.install_definitions(*sorted((ROOT / "charts/rltrain/templates/crds").glob("*.yaml")))
        kube.install_definitions(*kuberay_definitions())
        played_kueue.install(kube)
        kube.kubectl("apply", "-f", str(ROOT / "manifests/rltrain.yaml"))
        made = Cluster(kube, log, tmp_path)
        made.operator.start()
        made.operator.until_works()
        yield made
    finally:
        if made is not None:
            made.operator.kill()
        kube.stop()


@contextlib.contextmanager
def restless(cluster: Cluster, name: str) -> Iterator[None]:
    """A run that somebody changes all the time, so that what was decided about it is old when it is written."""
    kube, stop = cluster.kube, threading.Event()
    path = f"/apis/rltrain.dev/v1alpha1/namespaces/{cluster.namespace}/rltrainingruns/{name}"
    context = ssl.create_default_context(cafile=str(kube.certificate))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    headers = {"Authorization": f"Bearer {kube.token}", "Content-Type": "application/merge-patch+json"}

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = json.dumps({"metadata": {"annotations": {"restless": str(number)}}}).encode()
            request = urllib.request.Request(kube.server + path, body, headers, method="PATCH")
            with opener.open(request, timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_no_verb_is_granted_that_is_not_used_and_none_is_used_that_is_not_granted(cluster: Cluster) -> None:
    names_that_are_taken(cluster)
    a_run_that_goes_on_with_more_samplers_and_is_suspended(cluster)
    a_run_whose_time_has_come(cluster)
    a_cluster_to_work_in(cluster)
    a_conflict(cluster)
    a_run_whose_node_is_drained(cluster)
    a_service(cluster)
    devices_that_are_claimed(cluster)
    a_run_that_waits_in_a_queue(cluster)
    cluster.operator.kill()
    cluster.operator.start()  # finds lease and key
    cluster.operator.until_works()

    a_profile_of_other_namespaces(cluster)
    refused = [event for event in cluster.events() if event["responseStatus"]["code"] in (401, 403)]
    assert [(event["verb"], event["requestURI"]) for event in refused] == []
    used, granted = cluster.used(), cluster.granted()
    assert used - granted == set(), "used, and not granted by a role of the chart"
    assert granted - used == ADMISSION, "granted, and used by nothing above"
    assert "Traceback" not in cluster.operator.log.read_text()


def a_profile_of_other_namespaces(cluster: Cluster) -> None:
    """A profile that goes by the labels of namespaces: those of the run's are read. The API server alone would let it in.

    And nobody gets past it by naming none.
    """
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        cluster.kube.kubectl("delete", kind, "rltrain-profiles")
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "others"},
        "spec": {
            "pools": [{"name": "cpu"}],
            "allow": {"namespaces": {"matchLabels": {"tenant": "others"}}},
        },
    }
    cluster.kube.apply(profile)
    cluster.until(lambda: cluster.kube.get("rlprofile", "others"), "the profile is there")

    def refused() -> bool:
        with contextlib.suppress(AssertionError):  # while the policy is not gone yet
            cluster.train("elsewhere", profile="others")
        return "NotAllowed" in cluster.reasons("elsewhere")

    cluster.until(refused, "a run of another namespace is refused")
    conditions = cluster.there("rlrun", "elsewhere")["status"]["conditions"]
    assert conditions[0]["message"] == (
        f"metadata.namespace: found '{cluster.namespace}', allowed by profile others: namespaces with the labels "
        "tenant=others. Ask the platform team for more."
    )
    assert cluster.there("rayjob", "elsewhere-1") == {}
    cluster.delete("rlrun", "elsewhere")
    cluster.train("nameless")
    cluster.until(
        lambda: "ProfileMissing" in cluster.reasons("nameless"), "who names no profile gets round none"
    )
    cluster.delete("rlrun", "nameless")
    cluster.kube.kubectl("delete", "rlprofile", "others")


def a_service(cluster: Cluster) -> None:
    """A name that is taken, another one that is not, and a change."""
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "none"}]}}}
    cluster.apply(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": "taken"},
            "spec": {"rayClusterConfig": {"headGroupSpec": head}},
        }
    )
    for name in ("taken", "free"):
        spec = {"from": {"checkpoint": "tiny"}, "auth": {"anonymous": True}}
        service = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLPolicyService"}
        cluster.apply(service | {"metadata": {"name": name}, "spec": spec})

    def says(name: str) -> str:
        conditions = cluster.there("rlps", name).get("status", {}).get("conditions", ())
        return " ".join(one["message"] for one in conditions)

    cluster.until(lambda: "the service needs the name taken for a RayService" in says("taken"), "it is said")
    made = cluster.until(lambda: cluster.there("rayservice", "free"), "the RayService is made")
    cluster.change("rlps", "free", {"spec": {"limits": {"queue": 7}}})
    cluster.until(
        lambda: (
            cluster.there("rayservice", "free")["metadata"]["generation"] > made["metadata"]["generation"]
        ),
        "it is changed",
    )
    # In steps: whether its Gateway takes requests is looked at, once a cluster has the traffic.
    steps = {"strategy": "incremental", "incremental": {"gatewayClass": "internal"}}
    cluster.change("rlps", "free", {"spec": {"promotion": steps}})
    active = {"rayClusterName": "free-abcde", "targetCapacity": 100}
    cluster.status("rayservice", "free", activeServiceStatus=active)
    cluster.until(lambda: "Gateway free-gateway of class internal is not there" in says("free"), "it is said")


def names_that_are_taken(cluster: Cluster) -> None:
    """Whose an object is that has a name which is needed: it is read."""
    spec = {"podSelector": {}}
    taken = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken-1"}},
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "taken"},
            "spec": spec,
        },
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "taken"}, "spec": {}},
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": "taken-job-1"},
            "spec": {"entrypoint": "true"},
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": "taken-cluster-1"},
            "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}},
        },
    ]
    cluster.apply(*taken)
    cluster.train("taken")
    cluster.train("taken-job")
    cluster.train("taken-cluster", workload="Cluster")
    for name in ("taken", "taken-job", "taken-cluster"):
        cluster.until(lambda name=name: "ObjectRefused" in cluster.reasons(name), f"{name} is refused")
        cluster.delete("rlrun", name)


def a_run_that_goes_on_with_more_samplers_and_is_suspended(cluster: Cluster) -> None:
    claim = {"storage": {"persistentVolumeClaim": "checkpoints"}}
    cluster.train("elastic", checkpoint=claim, sampler={"replicas": 3, "minReplicas": 1})
    cluster.until(lambda: "ClaimMissing" in cluster.reasons("elastic"), "its claim is looked for")
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "checkpoints"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": storage}
    )
    name = cluster.cluster_of("elastic-1")
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {
        "name": "ray",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 3,
        "state": waiting,
    }
    cluster.status("pod", f"{name}-head", phase="Running", containerStatuses=[container])
    cluster.until(lambda: "CrashLoop" in cluster.reasons("elastic"), "what it wrote last is asked for")
    cluster.status(
        "pod", f"{name}-head", containerStatuses=[], conditions=[{"type": "Ready", "status": "True"}]
    )
    cluster.status("rayjob", "elastic-1", jobStatus="RUNNING", jobDeploymentStatus="Running")

    def samplers() -> int:
        groups = cluster.there("raycluster", name)["spec"]["workerGroupSpecs"]
        return next(int(one["replicas"]) for one in groups if one["groupName"] == "sampler")

    cluster.until(lambda: samplers() == 3, "KubeRay is asked for more samplers")
    cluster.change("pdb", "elastic", {"spec": {"minAvailable": 0}})
    cluster.until(lambda: cluster.there("pdb", "elastic")["spec"]["minAvailable"] != 0, "it is put right")
    cluster.change("networkpolicy", "elastic", {"spec": {"ingress": None}})
    cluster.until(lambda: cluster.there("networkpolicy", "elastic")["spec"].get("ingress"), "it is put right")
    cluster.change("rlrun", "elastic", {"spec": {"suspend": True}})
    cluster.until(lambda: not cluster.there("rayjob", "elastic-1"), "its RayJob is deleted")
    cluster.delete("raycluster", name)
    cluster.delete("pod", f"{name}-head")
    cluster.until(lambda: "Suspended" in cluster.reasons("elastic"), "it is suspended")
    cluster.change("rlrun", "elastic", {"spec": {"suspend": False}})
    cluster.until(lambda: cluster.there("rayjob", "elastic-2"), "it is resumed")


def a_run_whose_time_has_come(cluster: Cluster) -> None:
    cluster.train("short", cleanup={"ttlAfterFinished": "1s"})
    cluster.until(lambda: cluster.there("rayjob", "short-1"), "it begins")
    cluster.status("rayjob", "short-1", jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    for what, name in (
        ("rayjob", "short-1"),
        ("configmap", "short-1"),
        ("networkpolicy", "short"),
        ("pdb", "short"),
    ):
        cluster.until(lambda what=what, name=name: not cluster.there(what, name), f"{what} {name} goes")


def devices_that_are_claimed(cluster: Cluster) -> None:
    """Templates of claims are made, put right, found to be another run's, and go with theirs."""
    pools = [{"name": "cpu"}, {"name": "mig", "deviceClass": {"name": "mig.nvidia.com"}}]
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "devices"},
        "spec": {"pools": pools},
    }
    cluster.kube.apply(profile)
    kind = "resourceclaimtemplates"

    def templates() -> list[str]:
        found = cluster.kube.get(kind, "-n", cluster.namespace)["items"]
        return [one["metadata"]["name"] for one in found]

    def train(**spec: Any) -> None:
        with contextlib.suppress(AssertionError):  # while the first one is not gone yet
            cluster.train("claims", profile="devices", sampler={"pools": ["mig"]}, **spec)

    train(cleanup={"ttlAfterFinished": "1s"})
    (name,) = cluster.until(templates, "its devices can be claimed")
    mark = "rltrain.dev/manifest"
    cluster.change(kind, name, {"metadata": {"annotations": {mark: "other"}}})

    def right() -> bool:
        return bool(cluster.there(kind, name)["metadata"]["annotations"][mark] != "other")

    cluster.until(right, "it is put right")
    cluster.status("rayjob", "claims-1", jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    cluster.until(lambda: not templates(), "it goes")
    cluster.delete("rlrun", "claims")
    taken = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "of-somebody"}}]}}
    api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    cluster.apply(api | {"metadata": {"name": name}, "spec": {"spec": taken}})

    def refused() -> bool:
        train()
        return "ObjectRefused" in cluster.reasons("claims")

    cluster.until(refused, "a name that is taken is said")
    cluster.delete("rlrun", "claims")
    cluster.kube.kubectl("delete", "rlprofile", "devices")


def a_cluster_to_work_in(cluster: Cluster) -> None:
    cluster.train("hand", workload="Cluster")
    cluster.until(lambda: cluster.there("raycluster", "hand-1"), "it begins")
    cluster.change("rlrun", "hand", {"spec": {"suspend": True}})
    cluster.until(lambda: not cluster.there("raycluster", "hand-1"), "its RayCluster is deleted")


def a_run_whose_node_is_drained(cluster: Cluster) -> None:
    """It is moved: its RayJob goes, and when its pods are gone another one of this attempt is made."""
    cluster.train("moved")
    name = cluster.cluster_of("moved-1")
    first = cluster.there("rayjob", "moved-1")["metadata"]["uid"]
    cluster.kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "drained"}})
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": f"{name}-head"}}
    binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": "drained"}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}-head/binding"
    cluster.kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    cluster.kube.kubectl("cordon", "drained")
    cluster.until(lambda: not cluster.there("rayjob", "moved-1"), "its RayJob is deleted")
    cluster.delete("raycluster", name)
    cluster.kube.kubectl(
        "delete", "pod", f"{name}-head", "-n", cluster.namespace, "--grace-period=0", "--force"
    )
    again = cluster.until(lambda: cluster.there("rayjob", "moved-1"), "it is made again")
    assert again["metadata"]["uid"] != first

    def moved() -> dict[str, Any]:
        status: dict[str, Any] = cluster.there("rlrun", "moved")["status"]
        return status if status["attempts"][0].get("preemptions") else {}

    status = cluster.until(moved, "it is counted")
    [eviction], [attempt] = status["evictions"], status["attempts"]
    assert (eviction["reason"], eviction["checkpoint"]) == ("NodeDrained", "none")
    assert eviction["message"] == "node drained is cordoned: head must go elsewhere"
    assert (attempt["number"], attempt["preemptions"]) == (1, 1)
    cluster.kube.kubectl("delete", "node", "drained")
    cluster.delete("rlrun", "moved")


def a_run_that_waits_in_a_queue(cluster: Cluster) -> None:
    """It is admitted, told what an eviction would cost, and evicted; its quota is given back, and it leaves the queue."""
    kube, namespace = cluster.kube, cluster.namespace
    played_kueue.mind_boosts(kube)
    cluster.until(lambda: played_kueue.boosts_are_minded(kube, namespace), "boosts are minded")
    kueue = {"apiVersion": played_kueue.VERSION}
    labels = {"pool": "spot"}
    allow = {"queues": ["team"], "workloadPriorityClasses": ["high"], "priorityClasses": ["urgent"]}
    kube.apply(
        kueue | {"kind": "ResourceFlavor", "metadata": {"name": "spot"}, "spec": {"nodeLabels": labels}},
        kueue | {"kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100},
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        },
        {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingProfile",
            "metadata": {"name": "queues"},
            "spec": {"pools": [{"name": "cpu"}], "allow": allow},
        },
    )

    def workload(name: str) -> dict[str, Any]:
        return cluster.there("workload", name)

    def boosted() -> bool:
        return BOOST_ANNOTATION in workload("queued")["metadata"]["annotations"]

    def given_back() -> bool:
        facts = workload("queued")["status"]["conditions"]
        return ("QuotaReserved", "False") in [(one["type"], one["status"]) for one in facts]

    scheduling = {"queue": "team", "workloadPriorityClass": "high"}
    cluster.train("queued", profile="queues", scheduling=scheduling)
    made = cluster.until(lambda: workload("queued"), "it asks its queue")
    assert made["spec"]["priority"] == 100
    played_kueue.admit(kube, namespace, "queued", "spot")
    job = cluster.until(lambda: cluster.there("rayjob", "queued-1"), "it begins")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["nodeSelector"] == labels
    cluster.until(boosted, "what its eviction would cost is said")
    played_kueue.evict(kube, namespace, "queued")
    cluster.until(lambda: not cluster.there("rayjob", "queued-1"), "its RayJob is deleted")
    cluster.until(given_back, "its quota is given back")
    cluster.change("rlrun", "queued", {"spec": {"suspend": True}})
    cluster.until(lambda: not workload("queued"), "it leaves the queue")
    cluster.delete("rlrun", "queued")

    scheduling = {"queue": "team", "priorityClass": "urgent"}
    cluster.train("urgent", profile="queues", scheduling=scheduling)
    made = cluster.until(lambda: workload("urgent"), "it asks its queue")
    assert made["spec"]["priority"] == 1000
    cluster.delete("rlrun", "urgent")
    kube.kubectl("delete", "rlprofile", "queues")


def a_conflict(cluster: Cluster) -> None:
    """After one the run is read as it is."""
    right: Right = ("runs", "rltrain.dev", "rltrainingruns", "", "get")
    cluster.train("restless", suspend=True)
    cluster.until(lambda: "Suspended" in cluster.reasons("restless"), "it is seen")
    with restless(cluster, "restless"):
        for suspend in (False, True) * 10:
            cluster.change("rlrun", "restless", {"spec": {"suspend": suspend}})
            if right in cluster.used():
                break
        cluster.until(lambda: right in cluster.used(), "it is read anew")


def test_owner_references_that_block_need_the_right_to_finalizers(cluster: Cluster) -> None:
    """Where that is checked, as here, a write of the operator is refused without it."""
    rules = cluster.kube.get("clusterrole", "rltrain-runs")["rules"]
    fewer = [rule for rule in rules if "rltrainingruns/finalizers" not in rule["resources"]]
    assert len(fewer) == len(rules) - 1
    kind, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "fewer"}
    subject = {"apiGroup": group, "kind": "User", "name": "fewer"}
    cluster.kube.apply(
        {"apiVersion": kind, "kind": "ClusterRole", "metadata": {"name": "fewer"}, "rules": fewer},
        {
            "apiVersion": kind,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "fewer"},
            "roleRef": reference,
            "subjects": [subject],
        },
    )
    cluster.train("owner")
    config = cluster.until(lambda: cluster.there("configmap", "owner-1"), "it begins")
    metadata = {"name": "copy", "ownerReferences": config["metadata"]["ownerReferences"]}
    copy = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    create = ("create", "--dry-run=server", "-n", cluster.namespace, "-f", "-")
    assert cluster.kube.kubectl(*create, f"--as={ACCOUNT}", stdin=copy).returncode == 0
    refused = cluster.kube.kubectl(*create, "--as=fewer", stdin=copy, check=False)
    assert "cannot set blockOwnerDeletion" in refused.stderr


def test_without_the_right_to_see_nodes_an_operator_works_and_says_so_once(cluster: Cluster) -> None:
    role = cluster.kube.get("clusterrole", "rltrain-cluster")
    fewer = [rule for rule in role["rules"] if "nodes" not in rule["resources"]]
    assert len(fewer) == len(role["rules"]) - 1

    def give(rules: list[dict[str, Any]], may: str) -> None:
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
        cluster.kube.kubectl("patch", "clusterrole", "rltrain-cluster", "--type=json", "-p", patch)
        asked = ("auth", "can-i", "list", "nodes", f"--as={ACCOUNT}")
        cluster.until(lambda: cluster.kube.kubectl(*asked, check=False).stdout.strip() == may, "it is known")

    cluster.operator.kill()
    give(fewer, "no")
    try:
        cluster.operator.start()
        cluster.operator.until_works()
        cluster.train("blind")
        cluster.until(lambda: cluster.there("rayjob", "blind-1"), "runs are kept going")
    finally:
        give(role["rules"], "yes")
    sentence = "runs are not moved away from nodes that are drained: "
    assert cluster.operator.log.read_text().count(sentence) == 1
