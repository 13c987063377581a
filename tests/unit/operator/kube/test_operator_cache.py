from __future__ import annotations

from typing import Any

from operator_worlds import (
    KEY,
    OWNED,
    make_profile,
    make_run,
    stored,
)

from rl_operator.kube.cache import Store
from rl_operator.model.parse import parse_group, parse_ray
from rl_operator.model.seen import SamplerGroup


class TestStore:
    def test_objects_are_found_by_their_run(self) -> None:
        store = Store()
        assert store.put(make_run()) == [KEY]
        assert store.put(stored("Pod", "p", 5)) == [KEY]
        assert store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED)) == [KEY]
        assert [(name, seen.kind) for name, seen in store.of_run(KEY)] == [("p", "Pod"), ("sums-1", "RayJob")]
        assert store.put(make_profile()) == [KEY]
        assert [profile["metadata"]["name"] for profile in store.profiles()] == ["shared"]
        assert store.phases() == {"Pending": 1}

    def test_older_news_is_dropped(self) -> None:
        store = Store()
        store.put(stored("Pod", "p", 5, status={"phase": "Running"}))
        assert store.put(stored("Pod", "p", 4, status={"phase": "Pending"})) == []
        assert store.put(stored("Pod", "p", 5)) == []
        assert store.version("Pod", ("team-a", "p"), "u") == 5
        assert store.version("Pod", ("team-a", "p"), "other") is None

    def test_what_was_deleted_does_not_come_back(self) -> None:
        store = Store()
        pod = stored("Pod", "p", 5)
        store.put(pod)
        assert store.drop(pod) == [KEY]
        assert store.put(stored("Pod", "p", 9)) == []
        assert store.was_deleted("u")
        assert list(store.of_run(KEY)) == []
        store.put(stored("Pod", "p", 10, "another"))
        assert store.drop(stored("Pod", "p", 11)) == [], "another pod has the name by now"
        assert len(list(store.of_run(KEY))) == 1

    def test_the_ray_cluster_of_a_ray_job_is_not_ours(self) -> None:
        owner = {"ownerReferences": [{"kind": "RayJob", "uid": "r"}]}
        assert Store().put(stored("RayCluster", "sums-1-abcde", 5, metadata=owner)) == []

    def test_the_end_of_a_pod_is_remembered(self) -> None:
        store = Store()
        ended = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]}
        store.put(stored("Pod", "p", 5))
        store.drop(stored("Pod", "p", 6, status=ended))
        (pod,) = store.ended_pods(KEY)
        assert pod.gone
        assert pod.containers[0].ended == "OOMKilled"
        store.put(make_run())
        assert store.drop(make_run()) == [KEY]
        assert store.ended_pods(KEY) == []
        assert store.run(KEY) is None

    def test_what_went_unseen_is_forgotten(self) -> None:
        store = Store()
        ended = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]}
        store.put(stored("Pod", "p", 5, status=ended))
        store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED))
        assert store.known("RayJob") == {("team-a", "sums-1"): ("r", 6)}
        assert store.gone("RayJob", ("team-a", "sums-1"), "another") == [], "not the one that is known"
        assert store.gone("RayJob", ("team-a", "sums-1"), "r") == [KEY]
        assert store.gone("Pod", ("team-a", "p"), "u") == [KEY]
        assert list(store.of_run(KEY)) == []
        assert [pod.containers[0].ended for pod in store.ended_pods(KEY)] == ["OOMKilled"]
        assert store.put(stored("RayJob", "sums-1", 7, "r", metadata=OWNED)) == [], "it does not come back"

    def test_objects_without_our_label_concern_nobody(self) -> None:
        assert Store().put(stored("Pod", "p", 5, metadata={"labels": {}})) == []


def group(replicas: int = 1, most: int = 2) -> SamplerGroup:
    return SamplerGroup("sums-1-abcde", "cluster-1", "ray-1", 1, replicas, most)


def cluster_document(**metadata: Any) -> dict[str, Any]:
    names = ("learner", "sampler")
    return {
        "kind": "RayCluster",
        "metadata": {
            "name": "sums-1-abcde",
            "namespace": "team-a",
            "uid": "cluster-1",
            "resourceVersion": "5",
            "labels": {"rltrain.dev/run": "sums", "rltrain.dev/attempt": "1"},
            "ownerReferences": [{"kind": "RayJob", "uid": "ray-1", "controller": True}],
            **metadata,
        },
        "spec": {
            "workerGroupSpecs": [{"groupName": name, "replicas": 1, "maxReplicas": 2} for name in names]
        },
    }


class TestSamplerGroup:
    def test_the_cluster_of_a_job_is_known_for_its_samplers(self) -> None:
        assert parse_group(cluster_document()) == group()
        store = Store()
        assert store.put(cluster_document()) == [("team-a", "sums")]
        assert [seen.view for _, seen in store.of_run(("team-a", "sums"))] == [group()]
        assert store.put(cluster_document(resourceVersion="6")) == [], "nothing that matters has changed"
        changed = cluster_document(resourceVersion="7")
        changed["spec"]["workerGroupSpecs"][1]["replicas"] = 2
        assert store.put(changed) == [("team-a", "sums")]

    def test_a_cluster_of_the_run_itself_is_read_for_both(self) -> None:
        owners = [{"kind": "RLTrainingRun", "uid": "12345678-90ab", "controller": True}]
        ray = parse_ray(cluster_document(ownerReferences=owners))
        assert ray.samplers is not None
        assert (ray.kind, ray.samplers.replicas, ray.samplers.index) == ("RayCluster", 1, 1)

    def test_a_cluster_without_samplers_is_none_of_ours(self) -> None:
        document = cluster_document()
        del document["spec"]["workerGroupSpecs"][1]
        assert parse_group(document) is None
        assert Store().put(document) == []
