"""All that an operator does, one function each, so that an audit log shows which rights that takes."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import played_kueue
from audited_cluster import Cluster, Right, restless

from rl_operator.model.workload import BOOST_ANNOTATION


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
        turns = itertools.cycle((False, True))

        def read_anew() -> bool:
            cluster.change("rlrun", "restless", {"spec": {"suspend": next(turns)}})
            return right in cluster.used()

        cluster.until(read_anew, "it is read anew")
