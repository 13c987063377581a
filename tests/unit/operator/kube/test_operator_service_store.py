"""What the watches have seen of services: whose is whose, and what is old."""

from __future__ import annotations

from typing import Any

from service_worlds import make_service

from rl_operator.kube.services import ServiceStore, concerns_services
from rl_operator.model.needs import Needs
from rl_operator.model.seen import WorkerGroup

KEY = ("team-a", "chat")
LABELS = {"rltrain.dev/service": "chat"}


def made(
    kind: str, name: str, uid: str, owner: tuple[str, str] | None = None, version: int = 1, **more: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "team-a",
        "uid": uid,
        "resourceVersion": str(version),
    }
    metadata |= {"labels": LABELS}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner[0], "uid": owner[1], "controller": True}]
    return {"kind": kind, "metadata": metadata, **more}


def filled() -> ServiceStore:
    store = ServiceStore()
    service = make_service()
    service["metadata"]["resourceVersion"] = "1"
    assert store.put(service) == [KEY]
    status = {"activeServiceStatus": {"rayClusterName": "chat-1"}}
    assert store.put(
        made("RayService", "chat", "ray", ("RLPolicyService", "service-uid"), status=status)
    ) == [KEY]
    store.put(made("RayCluster", "chat-1", "cluster", ("RayService", "ray")))
    store.put(made("Pod", "chat-1-head", "head", ("RayCluster", "cluster")))
    return store


def test_pods_are_those_of_its_own_clusters() -> None:
    store = filled()
    store.put(made("RayCluster", "forged", "forged", ("RayService", "another")))
    store.put(made("Pod", "forged-head", "forged-head", ("RayCluster", "forged")))
    store.put(made("Pod", "alone", "alone"))
    assert [(pod.name, cluster) for pod, cluster in store.pods(KEY, "ray")] == [("chat-1-head", "chat-1")]


def test_copies_of_its_own_clusters_and_how_many_are_wanted() -> None:
    store = filled()
    spec = {"workerGroupSpecs": [{"groupName": "replica", "replicas": 2, "maxReplicas": 3}]}
    store.put(made("RayCluster", "chat-2", "second", ("RayService", "ray"), spec=spec))
    store.put(made("RayCluster", "forged", "forged", ("RayService", "another"), spec=spec))
    assert store.groups(KEY, "ray") == {
        "chat-2": WorkerGroup("chat-2", "second", "ray", 0, 2, 3, "replica")
    }, "the first has none"


def test_each_of_its_own_clusters_takes_something() -> None:
    def takes(gpus: int) -> dict[str, Any]:
        group = {"groupName": "replica", "maxReplicas": 2, "rayStartParams": {"num-gpus": str(gpus)}}
        return {"headGroupSpec": {}, "workerGroupSpecs": [group]}

    store = filled()
    owner = ("RayService", "ray")
    store.put(made("RayCluster", "chat-1", "cluster", owner, 2, spec=takes(1)))
    store.put(made("RayCluster", "chat-2", "second", owner, spec=takes(4)))
    store.put(made("RayCluster", "forged", "forged", ("RayService", "another"), spec=takes(9)))
    assert store.asked(KEY, "ray") == (Needs(accelerators=2), Needs(accelerators=8))
    store.drop("RayCluster", ("team-a", "chat-1"), "cluster")
    assert store.asked(KEY, "ray") == (Needs(accelerators=8),)
    service = made("RayService", "chat", "ray", ("RLPolicyService", "service-uid"), 3)
    service["metadata"]["annotations"] = {"rltrain.dev/profile": "shared"}
    store.put(service | {"spec": {"rayClusterConfig": takes(4)}})
    ray = store.ray(KEY, "service-uid")
    assert ray is not None
    assert (ray.asked, ray.profile) == (Needs(accelerators=8), "shared")


def test_an_object_of_another_service_of_this_name_is_not_its_own() -> None:
    store = filled()
    assert store.ray(KEY, "service-uid") is not None
    assert store.ray(KEY, "a-later-uid") is None
    assert dict(store.live(KEY, "a-later-uid")) == {}
    assert list(dict(store.live(KEY, "service-uid"))) == [("RayService", "chat")]


def test_old_news_is_dropped() -> None:
    store = filled()
    newer = {"activeServiceStatus": {"rayClusterName": "chat-2"}}
    owner = ("RLPolicyService", "service-uid")
    assert store.put(made("RayService", "chat", "ray", owner, 3, status=newer)) == [KEY]
    assert store.put(made("RayService", "chat", "ray", owner, 2)) == []
    ray = store.ray(KEY, "service-uid")
    assert ray is not None
    assert ray.active == "chat-2"


def test_what_is_deleted_is_gone_and_another_of_its_name_stays() -> None:
    store = filled()
    assert store.drop("RayService", KEY, "an-older-uid") == []
    assert store.drop("RayService", KEY, "ray") == [KEY]
    assert store.ray(KEY, "service-uid") is None


def test_what_a_list_does_not_have_is_gone() -> None:
    store = filled()
    assert store.listed("Pod", "team-b", set(), 9) == []
    assert store.listed("Pod", None, set(), 9) == [KEY]
    assert list(store.pods(KEY, "ray")) == []
    assert store.serves("RayService")
    assert KEY in store.listed("RayService", None, None, 0)
    assert not store.serves("RayService")


def test_who_follows_a_run() -> None:
    store = filled()
    assert store.following(("team-a", "sums")) == [KEY]
    assert store.following(("team-b", "sums")) == []
    odd = make_service() | {"spec": "text"}
    odd["metadata"] = odd["metadata"] | {"name": "odd", "resourceVersion": "2"}
    store.put(odd)
    assert store.following(("team-a", "sums")) == [KEY]


def test_which_objects_are_of_services() -> None:
    assert concerns_services({"kind": "RayService", "metadata": {}})
    assert concerns_services({"kind": "Pod", "metadata": {"labels": LABELS}})
    assert not concerns_services({"kind": "Pod", "metadata": {"labels": {"rltrain.dev/run": "sums"}}})
