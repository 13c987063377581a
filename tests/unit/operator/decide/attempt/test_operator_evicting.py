"""Pods that a queue takes back: a checkpoint first, quota last, and the same attempt goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from operator_worlds import (
    CRASH,
    all_pods,
    condition,
    deleted,
    group,
    kinds,
    make_pod,
    make_ray,
    make_reading,
    running_ray,
)
from queued_runs import ASSIGNED, FLAVORS, PREEMPTED, Queued

from rl_operator.model.workload import Fact, Line


@pytest.fixture
def run() -> Queued:
    return Queued()


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

    def test_what_keeps_the_pods_is_told(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.evict()
        decision = run.story.answered("done")
        found = condition(decision, "Admitted")
        assert found is not None
        assert found[2].endswith("the checkpoint is written; the pods are being stopped")
        gone = replace(running_ray(samplers=group(2)), deleting=True)
        run.story.wait(59)
        found = condition(run.look(rays=(gone,)), "Admitted")
        assert found is not None
        assert found[2].endswith("the pods are being stopped")
        for seconds, minutes in ((1, 1), (59, 1), (1, 2)):
            run.story.wait(seconds)
            found = condition(run.look(), "Admitted")
            assert found is not None
            assert found[2].endswith(
                f"the pods are being stopped and have been for {minutes} min; waiting for KubeRay to remove RayJob sums-1: "
                "is the KubeRay operator running?"
            )
        ending = make_pod("learner", deleting=run.story.now + timedelta(seconds=30))
        decision = run.look(rays=(), pods=(ending,))
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[2].endswith(
            f"have been for 2 min; waiting for {ending.name} to be gone: do their nodes answer?"
        )
        assert decision.tell_queue == ()

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

    def test_its_queue_is_told_when_its_pods_are_awaited_anew(self, run: Queued) -> None:
        run.admit()
        run.train()
        run.main = replace(run.main, ready=True)
        assert run.queue().tell_queue == ()
        run.story.fail(CRASH)
        assert run.look(rays=(), pods=()).tell_queue == (), "it waits a moment, which is meant"
        run.story.wait(10)
        assert run.look().create[-1]["kind"] == "RayJob"
        again = make_ray(2)
        [change] = run.look(rays=(again,)).tell_queue
        assert (change.name, change.to, change.reason) == ("sums", "PodsLost", "WaitForRecovery")
        decision = run.queue(ready=False)
        assert decision.tell_queue == ()
        assert run.look(rays=(replace(again, deleting=True),)).tell_queue == ()
        decision = run.look(rays=(running_ray(2, samplers=group(2)),), pods=all_pods(2))
        assert [(change.to, change.reason) for change in decision.tell_queue] == [("PodsReady", "Started")]

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
