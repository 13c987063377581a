"""What the operator relies on of Kueue, step by step: Workloads that a run owns, on the real Kueue, without nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kueue_process import QueuedCluster
from kueue_queues import Queue, condition, pod_set, pod_sets
from operator_worlds import GPU_POOLS
from operator_worlds import condition as condition_of
from queued_runs import QUEUED, Queued

from rl_operator.model.workload import parse_workload

LONG, URGENT, BORROWED = 10, 1000, -1000


@pytest.fixture
def queue(queued: QueuedCluster) -> Queue:
    """A queue with 8 accelerators."""
    return Queue(queued.kube, 8)


def test_a_workload_is_admitted_with_a_flavor_for_each_role(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(4, 4))
    assert queue.until_admitted("long") == {"head": 1, "learner": 1, "sampler": 4}
    sets = queue.workload("long")["status"]["admission"]["podSetAssignments"]
    flavors = {one["name"]: one["flavors"] for one in sets}
    both = {"cpu": queue.namespace, "nvidia.com/gpu": queue.namespace}
    assert flavors == {"head": {"cpu": queue.namespace}, "learner": both, "sampler": both}
    queue.until(lambda: queue.used() == 8, "the quota is used")


def test_a_workload_with_a_minimum_is_admitted_with_what_is_free_and_does_not_grow(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(3, 2))
    queue.until_admitted("long")
    queue.submit("other", LONG, pod_sets(1, 5, least=1))
    assert queue.until_admitted("other")["sampler"] == 2
    queue.delete("long")
    queue.until(lambda: queue.used() == 3, "the quota of what was deleted is free")
    assert queue.admitted("other") == {"head": 1, "learner": 1, "sampler": 2}
    assert queue.workload("other")["spec"]["podSets"][2]["count"] == 5


def told(queue: Queue, name: str) -> tuple[str, str]:
    """Reason and sentence of a run with 4 learners and 2 samplers, of one accelerator each, where Kueue says of its Workload
    what it says of this one."""
    sampler = {"pools": ["h100"], "replicas": 2, "minReplicas": 2}
    spec = {**QUEUED, "learner": {"pools": ["h100"], "replicas": 4}, "sampler": sampler}
    run = Queued(spec, pools=GPU_POOLS)
    found = condition_of(run.queue(waits=parse_workload(queue.workload(name)).waits), "Admitted")
    assert found is not None
    return found[1], found[2]


def test_what_kueue_says_of_one_that_waits_is_told_right(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(4, 1))
    queue.until_admitted("long")
    for name, sets in (("other", pod_sets(4, 2)), ("large", pod_sets(9, 1))):
        queue.submit(name, LONG, sets)
        queue.until_waits(name)
    reason, sentence = told(queue, "other")
    assert reason == "Queued", sentence
    assert f"needs 6 nvidia.com/gpu, 3 nvidia.com/gpu free in flavor {queue.namespace}" in sentence
    reason, sentence = told(queue, "large")
    assert reason == "Inadmissible", sentence
    assert f"flavor {queue.namespace} never has more than 8 nvidia.com/gpu" in sentence
    change = {"spec": {"stopPolicy": "Hold"}}
    queue.kube.kubectl("patch", "clusterqueue", queue.namespace, "--type=merge", "-p", json.dumps(change))

    def is_told() -> bool:
        # Kueue looks at a Workload when that changes; that a queue was stopped it may see too late for those that wait.
        queue.touch("other")
        return queue.condition("other", "QuotaReserved")[1] == "Inadmissible"

    queue.until(is_told, "its queue is stopped")
    assert told(queue, "other")[0] == "Inadmissible"


def test_only_one_role_may_have_a_minimum(queue: Queue) -> None:
    sets = pod_sets(1, 5, least=1)
    sets[1]["minCount"] = 1
    with pytest.raises(AssertionError, match="at most one podSet can use minCount"):
        queue.submit("long", LONG, sets)


def test_an_evicted_workload_keeps_its_quota_until_its_owner_gives_it_back(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(4, 4))
    queue.until_admitted("long")
    queue.submit("urgent", URGENT, pod_sets(4, 4))
    queue.until_evicted("long")
    assert queue.condition("long", "QuotaReserved") == ("True", "QuotaReserved")
    assert queue.condition("long", "Admitted") == ("True", "Admitted")
    assert queue.admitted("long") == {"head": 1, "learner": 1, "sampler": 4}
    assert queue.workload("urgent")["metadata"]["uid"] in queue.message("long", "Evicted")
    queue.until(
        lambda: "Pending the preemption of 1" in queue.until_waits("urgent"), "it waits for the other"
    )
    assert queue.admitted("urgent") is None

    queue.give_back("long")
    queue.until_admitted("urgent")
    assert queue.condition("long", "Evicted") == ("True", "Preempted")
    assert queue.admitted("long") is None

    queue.delete("urgent")  # and nobody need say anything
    queue.until_admitted("long")
    assert queue.condition("long", "Evicted") == ("False", "QuotaReserved")


def test_quota_is_given_back_by_a_patch_and_not_by_server_side_apply(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(4, 4))
    queue.until_admitted("long")
    queue.submit("urgent", URGENT, pod_sets(4, 4))
    queue.until_evicted("long")
    found = queue.workload("long")
    conditions = [
        condition("QuotaReserved", "False", "Pending"),
        condition("Admitted", "False", "NoReservation"),
    ]
    applied = {key: found[key] for key in ("apiVersion", "kind")}
    applied |= {"metadata": {"name": "long"}, "status": {"conditions": conditions}}
    options = ["--server-side", "--subresource=status", "--force-conflicts", "--dry-run=server", "-o", "json"]
    said = queue.kube.kubectl(
        "apply",
        *options,
        "--field-manager=rltrain-operator",
        "-n",
        queue.namespace,
        "-f",
        "-",
        stdin=json.dumps(applied),
    ).stdout
    assert '"admission"' in said  # Kueue's, whose field it is
    stale = {"metadata": {"resourceVersion": "1"}, "status": {"admission": None, "conditions": conditions}}
    assert "the object has been modified" in queue.patch_status("long", stale)


def test_an_admitted_workload_that_is_deleted_or_finished_frees_its_quota(queue: Queue) -> None:
    for ending in ("delete", "finish"):
        queue.submit(ending, LONG, pod_sets(4, 4))
        queue.until_admitted(ending)
        queue.submit(f"after-{ending}", LONG, pod_sets(4, 4))
        queue.until_waits(f"after-{ending}")
        if ending == "delete":
            queue.delete(ending)
        else:
            at = {"op": "add", "path": "/status/conditions/-"}
            value = condition("Finished", "True", "Succeeded", "done")
            assert not queue.patch_status(ending, [at | {"value": value}], kind="json")
        queue.until_admitted(f"after-{ending}")
        queue.delete(f"after-{ending}")


def test_a_workload_that_is_made_inactive_is_evicted_and_admitted_when_it_is_active_again(
    queue: Queue,
) -> None:
    queue.submit("long", LONG, pod_sets(4, 4))
    queue.until_admitted("long")
    assert not queue.patch("long", {"spec": {"active": False}})
    queue.until_evicted("long", "Deactivated")
    assert queue.admitted("long") is not None
    queue.give_back("long")
    queue.until(lambda: queue.used() == 0, "its quota is free")
    assert not queue.patch("long", {"spec": {"active": True}})
    queue.until_admitted("long")


def test_sizes_change_while_a_workload_waits_and_only_down_when_it_is_admitted(queue: Queue) -> None:
    queue.submit("long", LONG, pod_sets(4, 4))
    queue.until_admitted("long")
    queue.submit("other", LONG, pod_sets(2, 4))
    queue.until_waits("other")
    queue.submit("other", LONG, pod_sets(2, 2))
    grown = [{"op": "replace", "path": "/spec/podSets/2/count", "value": 5}]
    assert "field is immutable" in queue.patch("long", grown, kind="json")
    shrunk = [{"op": "replace", "path": "/spec/podSets/2/count", "value": 1}]
    assert not queue.patch("long", shrunk, kind="json")
    assert "1 more needed" in queue.until(
        lambda: "1 more" in (said := queue.until_waits("other")) and said, "it wants one"
    )
    assert not queue.patch_status("long", {"status": {"reclaimablePods": [{"name": "sampler", "count": 1}]}})
    assert queue.until_admitted("other")["sampler"] == 2


def test_samplers_of_a_workload_of_their_own_are_taken_back_first_and_given_again(queue: Queue) -> None:
    queue.submit("run", LONG, pod_sets(2, 2))
    queue.until_admitted("run")
    queue.submit("borrowed", BORROWED, [pod_set("sampler", 10, 1, least=1)])
    assert queue.until_admitted("borrowed") == {"sampler": 4}
    queue.submit("other", LONG, pod_sets(2, 2))
    queue.until_evicted("borrowed")
    assert queue.condition("run", "Evicted") == ("", "")
    queue.give_back("borrowed")
    queue.until_admitted("other")
    queue.delete("other")
    assert queue.until_admitted("borrowed") == {"sampler": 4}
    assert queue.condition("run", "Evicted") == ("", "")


def test_slices_grow_in_whole_steps_and_are_evicted_as_a_whole(queue: Queue) -> None:
    elastic = {"elastic_job": "true"}
    queue.submit("first", LONG, pod_sets(2, 2), **elastic)
    queue.until_admitted("first")
    replaces = {"workload_slice_replacement_for": f"{queue.namespace}/first"}
    queue.submit("second", LONG, pod_sets(2, 4), **elastic, **replaces)
    queue.until_admitted("second")
    queue.until(lambda: queue.condition("first", "Finished") == ("True", "WorkloadSliceReplaced"), "replaced")
    queue.until(lambda: queue.used() == 6, "only the difference was taken")
    replaces = {"workload_slice_replacement_for": f"{queue.namespace}/second"}
    queue.submit("third", LONG, pod_sets(2, 12), **elastic, **replaces)
    assert "6 more needed" in queue.until_waits("third")  # though 2 are free
    with pytest.raises(AssertionError, match="partial admission and elastic job cannot be used together"):
        queue.submit("fourth", LONG, pod_sets(2, 12, least=4), **elastic)
    queue.submit("urgent", URGENT, pod_sets(2, 2))
    queue.until_evicted("second")  # the learner with them


@pytest.mark.parametrize("kept", ["older", "newer"])
def test_of_equals_the_one_with_the_boost_is_kept(queue: Queue, kept: str) -> None:
    for name in ("older", "newer"):
        queue.submit(name, LONG, pod_sets(2, 2), **({"priority_boost": "5"} if name == kept else {}))
        queue.until_admitted(name)
    queue.submit("urgent", URGENT, pod_sets(2, 2))
    queue.until_evicted("newer" if kept == "older" else "older")
    assert queue.condition(kept, "Evicted") == ("", "")


def test_a_boost_counts_wherever_the_priority_does(queue: Queue) -> None:
    """So it is bounded, never negative, and taken away before the quota is given back."""
    queue.submit("long", LONG, pod_sets(4, 4), priority_boost=str(URGENT))
    queue.until_admitted("long")
    queue.submit("urgent", URGENT, pod_sets(4, 4))
    queue.until_waits("urgent")
    assert queue.condition("long", "Evicted") == ("", "")
    # Kueue tries again when something of its queues changes, and not when a boost does.
    queue.delete("urgent")
    queue.submit("long", LONG, pod_sets(4, 4), priority_boost="-1")
    queue.submit("urgent", URGENT, pod_sets(4, 4))
    queue.until_evicted("long")


def test_a_boost_that_is_no_number_is_refused_where_the_gate_is_on(queue: Queue) -> None:
    with pytest.raises(AssertionError, match="must be a valid signed integer"):
        queue.submit("long", LONG, pod_sets(4, 4), priority_boost="much")


@pytest.fixture
def without_boost(queued: QueuedCluster) -> Iterator[Queue]:
    """A queue whose Kueue has the gate off."""
    queued.kueue.restart(PriorityBoost=False)
    yield Queue(queued.kube, 8)
    queued.kueue.restart()


def test_without_the_gate_a_boost_changes_nothing(without_boost: Queue) -> None:
    queue = without_boost
    queue.submit("older", LONG, pod_sets(2, 2))
    queue.until_admitted("older")
    queue.until_older("older")
    queue.submit(
        "newer", LONG, pod_sets(2, 2), priority_boost="much"
    )  # what tells a client that the gate is off
    queue.until_admitted("newer")
    queue.submit("urgent", URGENT, pod_sets(2, 2))
    queue.until_evicted("newer")
    assert queue.condition("older", "Evicted") == ("", "")
