"""What the watches have seen: found by run, newest first, and forgotten when it is gone."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from operator_worlds import KEY, OWNED, SETTINGS, make_profile, make_run, stored

from rl_operator.kube import cache
from rl_operator.kube.applied import LAST_APPLIED
from rl_operator.kube.cache import Store
from rl_operator.model.nesting import DEEPEST
from rl_operator.plan.effective import plan
from rl_operator.plan.refused import Refused


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

    def test_of_a_node_it_is_kept_whether_it_is_drained_and_only_its_runs_hear_of_it(self) -> None:
        def node(version: int, **spec: Any) -> dict[str, Any]:
            metadata = {"name": "n", "uid": "node", "resourceVersion": str(version)}
            return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"images": ["large"] * 50}}

        store = Store()
        store.put(make_run())
        store.put(stored("Pod", "p", 5, spec={"nodeName": "n"}))
        assert store.put(node(6)) == []
        assert store.put(node(7, unschedulable=True)) == [KEY]
        assert store.cordoned("n") == "is cordoned"
        assert store.put(node(8, unschedulable=True, podCIDR="10.0.0.0/24")) == [], "nothing new"
        removed = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
        assert store.put(node(9, taints=removed)) == [KEY]
        assert store.cordoned("n") == "is about to be removed by the cluster autoscaler"
        assert store.put(node(8, unschedulable=True)) == [], "older"
        assert store.put(node(10)) == [KEY]
        assert (store.cordoned("n"), store.cordoned("another")) == ("", "")
        store.put(node(11, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]))
        assert store.cordoned("n") == "is cordoned"
        store.drop(node(12))
        assert store.cordoned("n") == ""

    def test_who_waits_in_a_queue_is_found_whoever_it_is(self) -> None:
        def workload(name: str, version: int, queue: str, *labels: str) -> dict[str, Any]:
            metadata = {"name": name, "namespace": "team-a", "uid": name, "resourceVersion": str(version)}
            metadata["labels"] = dict.fromkeys(labels, "0")  # type: ignore[assignment]
            return {"kind": "Workload", "metadata": metadata, "spec": {"queueName": queue}}

        def waiting(queue: str) -> list[str]:
            return sorted(one.name for one in store.waiting("team-a", queue))

        store = Store()
        store.put(workload("a", 1, "main"))
        store.put(workload("b", 2, "main"))
        store.put(workload("c", 3, "other"))
        store.put(workload("borrowed", 4, "main", "rltrain.dev/samplers"))
        assert (waiting("main"), waiting("other")) == (["a", "b"], ["c"])
        assert store.workload_of("b") == ("team-a", "b")
        store.put(workload("b", 5, "other"))
        store.drop(workload("a", 6, "main"))
        assert (waiting("main"), waiting("other")) == ([], ["b", "c"])
        assert list(store.waiting("team-b", "main")) == []

    def test_older_news_is_dropped(self) -> None:
        store = Store()
        store.put(stored("Pod", "p", 5, status={"phase": "Running"}))
        assert store.put(stored("Pod", "p", 4, status={"phase": "Pending"})) == []
        assert store.put(stored("Pod", "p", 5)) == []
        ((_, seen),) = store.of_run(KEY)
        assert (seen.uid, seen.version) == ("u", 5)

    def test_late_news_of_an_older_object_does_not_replace_the_newer_one_of_its_name(self) -> None:
        store = Store()
        store.put(stored("RayJob", "sums-1", 5, "old", metadata=OWNED))
        store.put(stored("RayJob", "sums-1", 9, "new", metadata=OWNED))
        assert store.put(stored("RayJob", "sums-1", 7, "old", metadata=OWNED)) == []
        assert store.drop(stored("RayJob", "sums-1", 8, "old", metadata=OWNED)) == []
        assert [(seen.uid, seen.version) for _, seen in store.of_run(KEY)] == [("new", 9)]

    def test_what_a_kind_had_that_was_unknown_for_a_moment_is_there_again(self) -> None:
        store = Store()
        store.put(make_run(resourceVersion="5"))
        store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED))
        for kind in ("RLTrainingRun", "RayJob"):
            store.listed(kind, None, None, 0)
        assert (store.runs(), list(store.of_run(KEY))) == ([], [])
        assert store.put(make_run(resourceVersion="5")) == [KEY]
        assert store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED)) == [KEY]

    @pytest.mark.parametrize("nulls", [[1], [{"path": "checkpoint"}], ["checkpoint", None], "checkpoint"])
    def test_nulls_of_a_newer_version_are_not_read(self, nulls: Any) -> None:
        store = Store()
        assert store.put(make_run(resourceVersion="5") | {"status": {"nulls": nulls}}) == [KEY]
        found = store.run(KEY)
        assert found is not None
        assert found["nulls"] == []

    @pytest.mark.parametrize("suspend", [True, False])
    def test_of_a_spec_that_is_too_large_no_more_is_kept_than_it_takes_to_end_its_attempt(
        self, suspend: bool
    ) -> None:
        store = Store()
        large = {"suspend": suspend, "task": {"args": {"a": "b" * 70_000}}}
        run = make_run(large, resourceVersion="5") | {"status": {"nulls": ["checkpoint"]}}
        assert store.put(run) == [KEY]
        found = store.run(KEY)
        assert found is not None
        assert found["spec"] == {"suspend": suspend}
        assert found["nulls"] == ["checkpoint"]
        refused = plan(found, [], SETTINGS)
        assert isinstance(refused, Refused)
        assert refused.reason == "InvalidSpec"
        assert refused.message.startswith("spec: found 70")
        assert "bytes of JSON, allowed: at most 65536" in refused.message

    @pytest.mark.parametrize("spec", [None, 5, [{"a": 1}], "text" * 40_000, {"a": "\ud800"}])
    def test_a_spec_may_be_anything(self, spec: Any) -> None:
        store = Store()
        assert store.put(make_run(resourceVersion="5") | {"spec": spec}) == [KEY]
        found = store.run(KEY)
        assert found is not None
        assert isinstance(plan(found, [], SETTINGS), Refused)

    def test_a_profile_is_cut_where_it_is_too_deep(self) -> None:
        deep: Any = 1
        for _ in range(600):
            deep = {"a": deep}
        store = Store()
        store.put(make_profile() | {"spec": deep})
        (profile,) = store.profiles()
        assert json.dumps(profile["spec"]).count("{") == DEEPEST - 1

    def test_what_was_deleted_does_not_come_back(self) -> None:
        store = Store()
        store.put(stored("Pod", "p", 5))
        assert store.drop(stored("Pod", "p", 9)) == [KEY]
        assert store.put(stored("Pod", "p", 8)) == []
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
        assert store.listed("RayJob", None, {"r"}, 10) == []
        assert store.listed("RayJob", None, set(), 5) == [], "it was made after the list"
        assert store.listed("RayJob", "team-b", set(), 10) == [], "of another namespace"
        assert store.listed("RayJob", "team-a", {"another"}, 10) == [KEY]
        assert store.listed("Pod", None, set(), 10) == [KEY]
        assert list(store.of_run(KEY)) == []
        assert [pod.containers[0].ended for pod in store.ended_pods(KEY)] == ["OOMKilled"]
        assert store.put(stored("RayJob", "sums-1", 7, "r", metadata=OWNED)) == [], "it does not come back"

    def test_a_label_that_was_taken_away_and_is_back_brings_the_object_back(self) -> None:
        store = Store()
        store.put(stored("PodDisruptionBudget", "sums", 5, metadata=OWNED))
        store.drop(
            stored("PodDisruptionBudget", "sums", 6, metadata=OWNED)
        )  # what a watch by label says then
        assert store.put(stored("PodDisruptionBudget", "sums", 7, metadata=OWNED)) == [KEY]

    def test_a_kind_that_the_cluster_does_not_know(self) -> None:
        store = Store()
        store.put(make_run())
        store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED))
        assert store.serves("RayJob")
        assert store.listed("RayJob", None, None, 0) == [KEY, KEY], "the run, and for its RayJob"
        assert not store.serves("RayJob")
        assert list(store.of_run(KEY)) == []
        assert store.listed("RayJob", None, set(), 9) == [KEY], (
            "KubeRay is there: runs that wait for it may begin"
        )
        assert store.serves("RayJob")

    def test_pods_that_outlive_their_run_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, now = Store(), time.monotonic()
        monkeypatch.setattr(cache.time, "monotonic", lambda: now)
        ended = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "Error"}}}]}
        for number in range(100):
            labels = {"labels": {"rltrain.dev/run": f"run-{number}"}}
            store.put(stored("Pod", f"p-{number}", 5, f"u-{number}", metadata=labels))
            store.drop(stored("Pod", f"p-{number}", 6, f"u-{number}", metadata=labels, status=ended))
            now += 60.0
        assert len(store._ended) <= 11
        assert store.ended_pods(("team-a", "run-99"))
        assert store.ended_pods(("team-a", "run-0")) == []

    def test_a_label_that_changes_takes_the_object_to_another_run(self) -> None:
        store = Store()
        store.put(stored("Pod", "p", 5))
        other = {"labels": {"rltrain.dev/run": "other"}}
        assert store.put(stored("Pod", "p", 6, metadata=other)) == [("team-a", "other")]
        assert list(store.of_run(KEY)) == []

    def test_objects_without_our_label_concern_nobody(self) -> None:
        assert Store().put(stored("Pod", "p", 5, metadata={"labels": {}})) == []


def test_a_run_in_store_takes_little_more_than_its_spec_as_text() -> None:
    """Not its managed fields and annotations, and not the fifteenfold that a spec takes as objects of Python's."""
    args = {f"key-{number}": ["value", {"a": number}] for number in range(2000)}
    owned = {"manager": "kubectl", "fieldsV1": {"f:spec": {f"f:{name}": {} for name in args}}}
    said = {LAST_APPLIED: json.dumps(args)}
    spec = len(json.dumps(make_run({"task": {"args": args}})["spec"]))
    assert spec > 60_000
    store, runs = Store(), 5
    tracemalloc.start()
    for number in range(runs):
        name = f"run-{number}"
        run = make_run(
            {"suspend": True, "task": {"args": args}},
            name=name,
            uid=name,
            resourceVersion="5",
            labels={"app": "sums"},
            managedFields=[owned],
            annotations=said,
        )
        store.put(json.loads(json.dumps(run)))
        del run
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < runs * 1.2 * spec + 50_000
    found = store.run(("team-a", "run-0"))
    assert found is not None
    assert found["spec"]["task"]["args"] == args
    assert set(found["metadata"]) == {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
    }


def test_whether_a_run_has_begun() -> None:
    store = Store()
    assert store.begun(KEY) is None
    store.put(make_run(resourceVersion="1"))
    assert store.begun(KEY) is False
    store.put({**make_run(resourceVersion="2"), "status": {"phase": "Training", "attempts": [{"number": 1}]}})
    assert store.begun(KEY) is True
    assert store.phases() == {"Training": 1}


def test_whether_a_queue_gave_quota_and_wants_it_back() -> None:
    def workload(version: int, *facts: tuple[str, str]) -> dict[str, Any]:
        conditions = [{"type": kind, "status": status} for kind, status in facts]
        return stored("Workload", "sums", version, "w", status={"conditions": conditions}, metadata=OWNED)

    store = Store()
    store.put(make_run())
    assert (store.may_begin(KEY), store.gives_way(KEY)) == (False, False)
    store.put(workload(5, ("QuotaReserved", "True"), ("Admitted", "True")))
    assert (store.may_begin(KEY), store.gives_way(KEY)) == (True, False)
    store.put(stored("RayJob", "sums-1", 1, "r", metadata=OWNED))
    assert (store.may_begin(KEY), store.gives_way(KEY)) == (False, False), "it has"
    store.put(workload(6, ("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "True")))
    assert (store.may_begin(KEY), store.gives_way(KEY)) == (False, True)
    store.put(workload(7, ("QuotaReserved", "False"), ("Evicted", "True")))
    assert (store.may_begin(KEY), store.gives_way(KEY)) == (False, False), "it was given back"
