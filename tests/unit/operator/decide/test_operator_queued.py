"""Runs that their queue admits by a Workload of the operator's: waiting, eviction with a checkpoint, borrowed samplers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    NOW,
    Story,
    all_pods,
    condition,
    deleted,
    group,
    kinds,
    make_pod,
    make_profile,
    make_ray,
    make_reading,
    running_ray,
)

from rl_operator.decide.queued import ordinal
from rl_operator.model.decision import Decision
from rl_operator.model.seen import QueuePriority
from rl_operator.model.workload import Assignment, Fact, Flavor, Line, Workload

QUEUED: dict[str, Any] = {"scheduling": {"queue": "team-a"}, "sampler": {"replicas": 4, "minReplicas": 2}}
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 99, JobUID: UNKNOWN) due to prioritization in the ClusterQueue; "
    "preemptor path: /shared; preemptee path: /shared"
)
ASSIGNED = {
    "head": Assignment(1, ("cpu",)),
    "learner": Assignment(1, ("h100",)),
    "sampler": Assignment(2, ("h100",)),
}
FLAVORS = {
    "cpu": Flavor("cpu"),
    "h100": Flavor("h100", {"gpu": "h100"}, ({"key": "gpu", "operator": "Exists"},)),
}


def of_the_queue(decision: Decision, **fields: Any) -> Workload:
    """The Workload that was just made, as the API server holds it."""
    made = next(one for one in decision.create if one["kind"] == "Workload")
    values: dict[str, Any] = {
        "name": made["metadata"]["name"],
        "uid": f"workload-{made['metadata']['name']}",
        "queue": made["spec"]["queueName"],
        "created": NOW,
        "hash": made["metadata"]["annotations"]["rltrain.dev/manifest"],
        "pods": made["metadata"]["annotations"]["rltrain.dev/pods"],
        "count": sum(one["count"] for one in made["spec"]["podSets"]),
        "priority": made["spec"]["priority"],
    }
    return Workload(**(values | fields))


class Queued:
    """A run in a queue, and what Kueue does with it."""

    def __init__(self, spec: dict[str, Any] | None = None, **profile: Any) -> None:
        self.story = Story(spec or QUEUED, [make_profile(default=True, **profile)])
        self.main = of_the_queue(self.story.look())

    def look(self, **changes: Any) -> Decision:
        return self.story.look(**changes)

    def queue(self, *others: Workload, **changes: Any) -> Decision:
        """Kueue has changed the run's Workload."""
        world = {
            key: changes.pop(key)
            for key in ("line", "flavors", "rays", "pods", "reading", "preemptor")
            if key in changes
        }
        self.main = replace(self.main, **changes)
        return self.look(workloads=(self.main, *others), **world)

    def admit(self) -> Decision:
        return self.queue(
            reserved=True,
            admitted=True,
            evicted=None,
            waits=None,
            assigned=ASSIGNED,
            flavors=FLAVORS,
            line=None,
        )

    def train(self, samplers: int = 2) -> Decision:
        ray = running_ray(samplers=group(samplers))
        return self.look(rays=(ray,), pods=pods(samplers), reading=make_reading(time=self.story.now))

    def evict(self, message: str = PREEMPTED, reason: str = "Preempted") -> Decision:
        return self.queue(evicted=Fact(reason, message, self.story.now))


def pods(samplers: int) -> tuple[Any, ...]:
    return (*all_pods()[:2], *(make_pod("sampler", index=index) for index in range(samplers)))


@pytest.fixture
def run() -> Queued:
    return Queued()


def test_a_run_asks_its_queue_before_anything_of_it_is_made() -> None:
    story = Story(QUEUED)
    decision = story.look()
    assert kinds(decision) == ["Workload"]
    made = decision.create[0]
    assert made["metadata"]["ownerReferences"][0]["uid"] == story.run["metadata"]["uid"]
    sets = {one["name"]: one["count"] for one in made["spec"]["podSets"]}
    assert sets == {"head": 1, "learner": 1, "sampler": 2}, "samplers above the fewest are asked for later"
    assert made["spec"]["queueName"] == "team-a"
    assert "ephemeral-storage" not in str(made), "no queue knows of disks"
    assert condition(decision, "Admitted") == ("False", "Queued", "given to queue team-a")
    assert (decision.status.phase, decision.status.attempts) == ("Pending", [])
    assert decision.finalizer is True


def test_what_kueue_counts_devices_by_is_there_before_the_workload() -> None:
    pools = [{"name": "gpus", "deviceClass": {"name": "gpu.nvidia.com"}}, {"name": "cpu"}]
    story = Story(QUEUED, [make_profile(default=True, pools=pools)])
    decision = story.look()
    assert kinds(decision) == ["ResourceClaimTemplate", "ResourceClaimTemplate", "Workload"]
    named = {one["metadata"]["name"] for one in decision.create[:2]}
    specs = [one["template"]["spec"] for one in decision.create[2]["spec"]["podSets"]]
    claims = [claim for pod in specs for claim in pod.get("resourceClaims", ())]
    assert {claim["resourceClaimTemplateName"] for claim in claims} == named


def test_its_place_is_told_while_it_waits(run: Queued) -> None:
    said = "couldn't assign flavors: insufficient unused quota for cpu in flavor default, 200m more needed"
    decision = run.queue(waits=Fact("Pending", said), line=Line(3, 7))
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[2] == (
        "3rd of 7 in team-a; needs 4 pods, 200m more cpu must come free in flavor default, borrowed quota included "
        f"[{said}]"
    )
    queue = decision.status.queue
    assert queue is not None
    assert (queue.name, queue.workload, queue.position, queue.waiting) == ("team-a", "sums", 3, 7)
    assert condition(decision, "ClusterReady") == condition(decision, "Admitted")
    decision = run.look(line=Line(1, 7))
    assert decision.status.queue is not None
    assert decision.status.queue.position == 1


def test_accelerators_that_are_free_are_told() -> None:
    spec = {
        **QUEUED,
        "learner": {"pools": ["h100"], "replicas": 8},
        "sampler": {"replicas": 1, "pools": ["cpu"]},
    }
    run = Queued(spec, pools=GPU_POOLS)
    said = (
        "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed"
    )
    found = condition(run.queue(waits=Fact("Pending", said), line=Line(1, 1)), "Admitted")
    assert found is not None
    assert found[2].startswith(
        "1st of 1 in team-a; needs 8 nvidia.com/gpu, 4 nvidia.com/gpu free in flavor h100, borrowed quota included ["
    )


def test_what_no_quota_will_ever_hold_is_told(run: Queued) -> None:
    said = (
        "couldn't assign flavors to pod set learner: insufficient quota for cpu in flavor default, previously considered "
        "podsets requests (200m) + current podset request (8) > maximum capacity (4)"
    )
    found = condition(run.queue(waits=Fact("ExceedsMaxQuota", said)), "Admitted")
    assert found is not None
    assert "flavor default never has more than 4 cpu" in found[2]


def test_an_admitted_run_begins_where_the_queue_has_put_it(run: Queued) -> None:
    decision = run.admit()
    assert kinds(decision)[-1] == "RayJob"
    ray_job = decision.create[-1]
    assert "kueue.x-k8s.io/queue-name" not in ray_job["metadata"]["labels"]
    assert "suspend" not in ray_job["spec"]
    spec = ray_job["spec"]["rayClusterSpec"]
    learner = next(one for one in spec["workerGroupSpecs"] if one["groupName"] == "learner")["template"][
        "spec"
    ]
    assert learner["nodeSelector"] == {"gpu": "h100"}
    assert {"key": "gpu", "operator": "Exists"} in learner["tolerations"]
    assert "nodeSelector" not in spec["headGroupSpec"]["template"]["spec"]
    assert condition(decision, "Admitted") == (
        "True",
        "Admitted",
        "queue team-a has admitted the run on cpu, h100",
    )
    assert [one.number for one in decision.status.attempts] == [1]
    assert decision.status.queue is not None
    assert decision.status.queue.flavors == ["cpu", "h100"]


def test_a_flavor_that_cannot_be_read_holds_the_run_back(run: Queued) -> None:
    decision = run.queue(reserved=True, admitted=True, assigned=ASSIGNED, flavors={})
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[1] == "FlavorMissing"
    assert decision.create == ()


def test_checks_are_waited_for(run: Queued) -> None:
    decision = run.queue(
        reserved=True, assigned=ASSIGNED, flavors=FLAVORS, checks="provisioning: 2 nodes to come"
    )
    found = condition(decision, "Admitted")
    assert found == (
        "False",
        "AdmissionCheck",
        "queue team-a has quota for the run, and waits for provisioning: 2 nodes to come",
    )


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"kueue": False}, "KueueMissing"),
        (
            {"priority": QueuePriority(missing="there is no WorkloadPriorityClass 'x'")},
            "PriorityClassMissing",
        ),
    ],
)
def test_what_keeps_it_from_its_queue(world: dict[str, Any], reason: str) -> None:
    decision = Story(QUEUED).look(**world)
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[1] == reason
    assert not any(one["kind"] == "Workload" for one in decision.create)


def test_a_run_that_changes_while_it_waits_keeps_its_place(run: Queued) -> None:
    run.queue()
    run.story.set({"sampler": {"minReplicas": 3}})
    decision = run.look()
    assert [one["kind"] for one in decision.apply] == ["Workload"]
    assert (decision.create, decision.delete) == ((), ())


def test_one_that_changes_with_quota_and_without_pods_asks_anew(run: Queued) -> None:
    run.story.set({"sampler": {"minReplicas": 3}})
    decision = run.admit()
    assert deleted(decision) == [("Workload", "sums")]
    assert decision.status.attempts == []


class TestEviction:
    def test_a_checkpoint_comes_first_and_quota_goes_last(self, run: Queued) -> None:
        run.admit()
        run.train()
        began = run.story.now
        decision = run.evict()
        assert (decision.ask, decision.delete, decision.tell_queue) == (120.0, (), ())
        [eviction] = decision.status.evictions
        assert (eviction.reason, eviction.attempt, eviction.step, eviction.time) == ("Preempted", 1, 7, began)
        assert (
            eviction.message == "preempted for a workload (UID 99) due to prioritization in the ClusterQueue"
        )
        assert [note.reason for note in decision.notes] == ["Evicted"]
        run.story.wait(5)
        decision = run.story.answered("done", reading=make_reading(6, time=run.story.now))
        assert deleted(decision) == [("RayJob", "sums-1")]
        assert decision.tell_queue == ()
        assert decision.status.evictions[0].checkpoint == "written"
        # The RayJob is gone, its pods are not.
        ending = tuple(
            make_pod(role, deleting=run.story.now + timedelta(seconds=30)) for role in ("head", "learner")
        )
        run.story.wait(2)
        decision = run.look(rays=(), pods=ending)
        assert (decision.tell_queue, decision.delete) == ((), ())
        run.story.wait(3)
        decision = run.look(pods=())
        [change] = decision.tell_queue
        assert (change.name, change.to, change.reason) == ("sums", "Released", "Preempted")
        [eviction] = decision.status.evictions
        assert eviction.seconds_to_release == 10.0
        # Nothing is given back twice, and it waits in its queue as others do.
        decision = run.queue(reserved=False, admitted=False, line=Line(2, 2))
        assert decision.tell_queue == ()
        found = condition(decision, "Admitted")
        assert found is not None
        assert found[2].startswith("2nd of 2 in team-a")
        assert decision.status.attempts[0].end_time is None

    def test_admitted_again_the_same_attempt_goes_on(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        run.story.answered("done")
        run.look(rays=(), pods=())
        run.queue(reserved=False, admitted=False)
        run.story.wait(100)
        decision = run.admit()
        assert decision.create[-1]["metadata"]["name"] == "sums-1"
        assert [(one.number, one.preemptions, one.end_time) for one in decision.status.attempts] == [
            (1, 1, None)
        ]
        [eviction] = decision.status.evictions
        assert (eviction.resumed_time, eviction.resumed_step) == (run.story.now, 5)
        assert [note.message for note in decision.notes if note.reason == "AttemptResumed"] == [
            "attempt 1 goes on from step 5 as sums-1"
        ]
        decision = run.train()
        assert decision.status.phase == "Training"
        assert condition(decision, "Admitted") == (
            "True",
            "Admitted",
            "queue team-a has admitted the run on cpu, h100",
        )
        decision = run.look()
        assert set(kinds(decision)) == {"Workload"}, "samplers above the fewest are asked for again"
        assert (decision.delete, len(decision.status.evictions)) == ((), 1)

    def test_a_driver_that_never_answers_has_its_grace(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        run.story.wait(119)
        assert run.look().delete == ()
        run.story.wait(1)
        decision = run.look()
        assert deleted(decision) == [("RayJob", "sums-1")]
        assert decision.status.evictions[0].checkpoint == "late"

    def test_one_that_has_not_trained_is_stopped_at_once(self, run: Queued) -> None:
        run.admit()
        run.look(rays=(make_ray(),), pods=())
        decision = run.evict()
        assert (decision.delete, decision.requeue) == ((), 0.0), "it is written down first"
        decision = run.look()
        assert deleted(decision) == [("RayJob", "sums-1")]
        assert decision.status.evictions[0].checkpoint == "none"

    def test_an_operator_that_has_just_begun_waits_for_the_checkpoint_too(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        decision = run.look(reading=None)
        assert (decision.ask, decision.delete) == (120.0, ())

    def test_a_label_of_somebody_else_on_its_job_changes_nothing(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.look(rays=(running_ray(samplers=group(2), labelled=True),))
        decision = run.evict()
        assert decision.ask is not None
        assert decision.scale is None

    def test_between_attempts_quota_is_given_back_when_the_pods_are_gone(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.story.fail("Job failed with exit code 1, last available logs:\nrltrain: learner 0 died\n")
        ending = (make_pod("learner", deleting=run.story.now + timedelta(seconds=30)),)
        run.look(rays=(), pods=ending)
        decision = run.evict()
        assert decision.tell_queue == ()
        found = condition(decision, "Admitted")
        assert found is not None
        assert found[:2] == ("False", "Evicted")
        assert [change.to for change in run.look(pods=()).tell_queue] == ["Released"]

    @pytest.mark.parametrize("evicted", [False, True])
    def test_a_run_that_cannot_be_carried_out_any_more_holds_no_quota(
        self, run: Queued, evicted: bool
    ) -> None:
        run.admit()
        run.train()
        if evicted:
            run.evict()
            run.story.answered("done")
            run.look(rays=(), pods=())
            run.queue(reserved=False, admitted=False)
        else:
            run.story.fail("Job failed with exit code 1, last available logs:\nrltrain: learner 0 died\n")
            run.look(rays=(), pods=())
        run.story.set({"profile": "none-such"})
        decision = run.look()
        assert deleted(decision) == [("Workload", "sums")]
        found = condition(decision, "Admitted")
        assert found is not None
        assert found[:2] == ("False", "Withdrawn")
        assert decision.status.queue is None

    def test_suspended_with_pods_on_their_way_out_it_keeps_its_quota(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.story.fail("Job failed with exit code 1, last available logs:\nrltrain: learner 0 died\n")
        ending = (make_pod("learner", deleting=run.story.now + timedelta(seconds=30)),)
        run.story.set({"suspend": True})
        assert deleted(run.look(rays=(), pods=ending)) == []
        decision = run.look(pods=())
        assert deleted(decision) == [("Workload", "sums")]
        found = condition(decision, "Admitted")
        assert found is not None
        assert found[:2] == ("False", "Suspended")

    def test_its_queue_is_told_when_its_pods_are_ready(self, run: Queued) -> None:
        run.admit()
        assert run.look(rays=(make_ray(),)).tell_queue == ()
        decision = run.train()
        assert [(change.name, change.to) for change in decision.tell_queue] == [("sums", "PodsReady")]
        assert run.queue(ready=True).tell_queue == ()

    def test_evicted_before_it_began_it_gives_back_at_once(self, run: Queued) -> None:
        decision = run.queue(
            reserved=True, admitted=True, assigned=ASSIGNED, flavors={}, evicted=Fact("Preempted", PREEMPTED)
        )
        assert [one.to for one in decision.tell_queue] == ["Released"]
        assert decision.status.evictions == []

    def test_an_operator_that_died_after_giving_back_does_not_give_back_again(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        run.story.answered("done")
        # The patch was made, the status not written: Kueue has the Workload waiting, or even admitted again.
        decision = run.queue(reserved=False, admitted=False, rays=(), pods=())
        assert decision.tell_queue == ()
        assert decision.status.evictions[0].released_time == run.story.now

    def test_one_that_died_after_making_the_job_anew_goes_on_with_it(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        run.story.answered("done")
        run.look(rays=(), pods=())
        decision = run.queue(
            reserved=True,
            admitted=True,
            evicted=None,
            flavors=FLAVORS,
            rays=(make_ray(uid="another"),),
            pods=(),
        )
        assert decision.delete == ()
        assert decision.status.evictions[0].resumed_time == run.story.now
        assert decision.status.attempts[0].preemptions == 1

    def test_a_workload_that_somebody_deleted_stops_the_run_and_is_made_anew(self, run: Queued) -> None:
        run.admit()
        run.train()
        decision = run.look(workloads=())
        assert decision.ask is not None
        assert decision.status.evictions[0].reason == "WorkloadDeleted"
        run.story.answered("done")
        run.look(rays=(), pods=())
        decision = run.look()
        assert kinds(decision) == ["Workload"]

    def test_a_run_that_ends_meanwhile_has_ended(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        done = running_ray(deployment_status="Complete", job_status="SUCCEEDED")
        decision = run.look(rays=(done,))
        assert decision.status.phase == "Succeeded"
        decision = run.look(pods=())
        [change] = decision.tell_queue
        assert (change.to, change.reason) == ("Finished", "Succeeded")

    def test_suspended_meanwhile_it_has_no_place_in_the_queue(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        run.story.answered("done")
        run.look(rays=(), pods=())
        run.story.set({"suspend": True})
        decision = run.look()
        assert decision.status.phase == "Suspended"
        assert deleted(decision) == [("Workload", "sums")]
        assert decision.status.queue is None
        run.story.set({"suspend": False})
        decision = run.look(workloads=())
        assert kinds(decision) == ["Workload"]

    def test_a_retry_keeps_its_quota(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.story.fail("Job failed with exit code 1, last available logs:\nrltrain: learner 0 died\n")
        decision = run.look(rays=())
        assert (decision.tell_queue, decision.delete) == ((), ())
        run.story.wait(60)
        decision = run.look()
        assert decision.create[-1]["metadata"]["name"] == "sums-2"

    def test_a_deleted_run_keeps_its_quota_until_its_pods_are_gone(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.story.delete()
        run.look()
        run.story.answered("done")
        decision = run.look(rays=())
        assert decision.finalizer is None
        decision = run.look(pods=())
        assert decision.finalizer is False


class TestBorrowedSamplers:
    def parts(self, run: Queued, **fields: Any) -> tuple[Workload, ...]:
        decision = run.train()
        made = [one for one in decision.create if one["kind"] == "Workload"]
        assert [one["metadata"]["name"] for one in made] == ["sums.samplers.0", "sums.samplers.1"]
        assert {one["spec"]["priority"] for one in made} == {-1_000_000_000}
        assert made[0]["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
        run.main = replace(run.main, ready=True)
        return tuple(
            of_the_queue(replace(decision, create=(one,)), slice=part, count=1, **fields)
            for part, one in enumerate(made)
        )

    def test_they_are_asked_for_when_training_has_begun(self, run: Queued) -> None:
        run.admit()
        decision = run.look(rays=(make_ray(),))
        assert not any(one["kind"] == "Workload" for one in decision.create)
        parts = self.parts(run)
        decision = run.queue(*parts)
        assert decision.scale is None
        assert decision.status.roles["sampler"].reason == "4 samplers are wanted, and the queue gives 2 now"

    def test_what_is_given_is_used_and_what_is_taken_goes(self, run: Queued) -> None:
        run.admit()
        one, two = self.parts(run)
        given = replace(one, reserved=True, admitted=True)
        decision = run.queue(given, two)
        assert decision.scale is not None
        assert decision.scale.replicas == 3
        ray = running_ray(samplers=group(3))
        decision = run.look(rays=(ray,), pods=pods(3))
        assert [(change.name, change.to) for change in decision.tell_queue] == [(one.name, "PodsReady")]
        taken = replace(given, evicted=Fact("Preempted", PREEMPTED))
        decision = run.queue(taken, two)
        assert decision.scale is not None
        assert (decision.scale.replicas, len(decision.scale.remove)) == (2, 1)
        assert decision.tell_queue == (), "its pod is still there"
        ending = (*pods(2), make_pod("sampler", index=2, deleting=run.story.now))
        decision = run.look(rays=(running_ray(samplers=group(2)),), pods=ending)
        assert decision.tell_queue == ()
        decision = run.look(pods=pods(2))
        assert [(change.name, change.to) for change in decision.tell_queue] == [(one.name, "Released")]
        assert decision.status.evictions == [], "the run was not evicted"
        assert len(decision.status.attempts) == 1

    def test_they_go_with_the_run(self, run: Queued) -> None:
        run.admit()
        one, two = (replace(each, reserved=True, admitted=True) for each in self.parts(run))
        run.queue(one, two)
        run.evict()
        run.look(workloads=(run.main, one, two))
        decision = run.story.answered("done", workloads=(run.main, one, two))
        assert deleted(decision) == [("RayJob", "sums-1")]
        decision = run.look(rays=())
        assert decision.delete == (), "its pods are still there"
        decision = run.look(pods=())
        assert sorted(deleted(decision)) == [("Workload", one.name), ("Workload", two.name)]
        assert [change.name for change in decision.tell_queue] == ["sums"]

    def test_they_are_given_back_also_where_the_run_can_no_longer_be_carried_out(self, run: Queued) -> None:
        run.admit()
        one, two = self.parts(run)
        given = replace(one, reserved=True, admitted=True)
        run.queue(given, two)
        run.look(rays=(running_ray(samplers=group(3)),), pods=pods(3))
        run.story.set({"profile": "none-such"})
        taken = replace(given, evicted=Fact("Preempted", PREEMPTED))
        decision = run.queue(taken, two)
        assert decision.scale is not None
        assert decision.scale.replicas == 2
        decision = run.look(rays=(running_ray(samplers=group(2)),), pods=pods(2))
        assert [change.to for change in decision.tell_queue] == ["Released"]

    def test_a_smaller_number_drops_those_above_it(self, run: Queued) -> None:
        run.admit()
        one, two = (replace(each, reserved=True, admitted=True) for each in self.parts(run))
        run.queue(one, two)
        run.look(rays=(running_ray(samplers=group(4)),), pods=pods(4))
        run.story.set({"sampler": {"replicas": 3}})
        decision = run.look()
        assert decision.scale is not None
        assert decision.scale.replicas == 3
        assert decision.delete == ()
        decision = run.look(rays=(running_ray(samplers=group(3)),), pods=pods(3))
        assert deleted(decision) == [("Workload", two.name)]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (23, "23rd"),
        (111, "111th"),
    ],
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


@pytest.mark.parametrize("by_topology", [False, True])
def test_a_drained_run_keeps_its_quota_unless_that_is_for_the_very_nodes(
    run: Queued, by_topology: bool
) -> None:
    assigned = {name: replace(one, by_topology=by_topology) for name, one in ASSIGNED.items()}
    run.queue(reserved=True, admitted=True, assigned=assigned, flavors=FLAVORS)
    run.train()
    decision = run.look(cordoned={"node-1": "is cordoned"})
    assert decision.status.evictions[0].reason == "NodeDrained"
    assert deleted(run.story.answered("done")) == [("RayJob", "sums-1")]
    decision = run.look(rays=(), pods=(), reading=None)
    assert decision.tell_queue == (), "nobody wants the quota back"
    if by_topology:
        assert deleted(decision) == [("Workload", "sums")]
        assert kinds(run.look(workloads=())) == ["Workload"], "it asks anew"
    else:
        assert (deleted(decision), condition(decision, "Admitted")[0]) == ([], "True")  # type: ignore[index]
        decision = run.look()
        assert "RayJob" in kinds(decision)
        assert decision.status.attempts[0].preemptions == 1
