"""Runs in a queue: admitted, evicted, admitted again; and a job that somebody suspends by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    Story,
    all_pods,
    condition,
    deleted,
    failed_ray,
    make_profile,
    make_ray,
    make_reading,
    running_ray,
)

from rl_operator.model.seen import Event, Ray


def test_a_queue_admits() -> None:
    story = Story({"scheduling": {"queue": "team-a", "integration": "label"}})
    begun = story.begin()
    assert begun.create[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert condition(begun, "Admitted") == ("Unknown", "Queued", "given to queue team-a")
    decision = story.look(rays=(make_ray(held=True, deployment_status="Suspended"),))
    assert condition(decision, "Admitted") == ("False", "Queued", "the run waits in its queue for quota")
    assert decision.status.phase == "Pending"
    decision = story.look(rays=(make_ray(),))
    assert condition(decision, "Admitted") == ("True", "Admitted", "the queue has admitted the run")


def test_without_kueue_nobody_has_admitted_the_run() -> None:
    story = Story({"scheduling": {"queue": "team-a", "integration": "label"}})
    begun = story.begin()
    held = make_ray(held=begun.create[-1]["spec"]["suspend"], deployment_status="Suspended")
    decision = story.settled(rays=(held,), kueue=False)
    for kind in ("Admitted", "ClusterReady", "Training"):
        found = condition(decision, kind)
        assert found is not None
        assert found[:2] == ("False", "KueueMissing")
        assert found[2].startswith("nobody admits the run to queue team-a: this cluster has no Kueue")
    assert [note.reason for note in story.last.notes if story.last] == []
    decision = story.look(kueue=True)
    assert condition(decision, "Admitted") == ("False", "Queued", "the run waits in its queue for quota")


def test_the_queue_of_a_profile_that_is_gone() -> None:
    story = Story(
        {"profile": "shared", "scheduling": {"integration": "label"}}, [make_profile(queue="batch")]
    )
    story.begin()
    story.train()
    story.profiles = []
    decision = story.look(rays=(running_ray(held=True),), pods=())
    sentence = "the queue took the quota back; the run goes on from step 5 when it is admitted again"
    assert condition(decision, "Admitted") == ("False", "Evicted", sentence)
    decision = story.look(rays=(running_ray(),), pods=all_pods())
    assert condition(decision, "Admitted") == ("True", "Admitted", "the queue has admitted the run")


def test_what_a_queue_says_is_of_this_job_and_cut() -> None:
    story = Story({"scheduling": {"queue": "team-a", "integration": "label"}})
    story.begin()
    story.look(rays=(running_ray(),), pods=all_pods())
    events = (
        Event("RayJob", "sums-2", "Stopped", "of another"),
        Event("RayJob", "sums-1", "Created", "of something else"),
        Event("RayJob", "sums-1", "Stopped", "x" * 1000),
    )
    decision = story.look(rays=(running_ray(held=True),), pods=(), events=events)
    sentence = (
        f"queue team-a took the quota back ({'x' * 297}...); the run begins anew when it is admitted again"
    )
    assert condition(decision, "Admitted") == ("False", "Evicted", sentence)


QUEUED: dict[str, Any] = {
    "scheduling": {"queue": "team-a", "integration": "label"},
    "sampler": {"replicas": 1},
    "stop": {"maxDuration": "1m"},
}
PREEMPTED = "Preempted to accommodate a workload (UID: 1) due to reclamation within the cohort"


def test_a_queue_that_takes_the_quota_back_is_no_failure() -> None:
    story = Story(QUEUED)
    story.begin()
    story.look(rays=(make_ray(held=True, deployment_status="Suspended"),))
    story.train()
    assert story.last is not None
    assert condition(story.last, "Admitted") == ("True", "Admitted", "the queue has admitted the run")
    # The head may be gone before KubeRay has written that it stops.
    events = (Event("RayJob", "sums-1", "Stopped", PREEMPTED),)
    decision = story.look(rays=(running_ray(held=True),), pods=(), events=events)
    sentence = f"queue team-a took the quota back ({PREEMPTED}); the run goes on from step 5 when it is admitted again"
    for kind in ("Admitted", "ClusterReady", "Training"):
        assert condition(decision, kind) == ("False", "Evicted", sentence)
    assert decision.status.phase == "Pending"
    assert [(note.type, note.reason) for note in decision.notes] == [("Warning", "Evicted")]
    assert (decision.delete, decision.status.dashboard_url) == ((), None)
    story.wait(100_000)  # no deadline counts the time in the queue
    gone = make_ray(held=True, deployment_status="Suspended", cluster="")
    decision = story.settled(rays=(gone,))
    assert condition(decision, "Admitted") == ("False", "Evicted", sentence)
    assert decision.pull is None
    # Admitted again: the same attempt goes on, and what its driver said before counts no more.
    decision = story.look(rays=(make_ray(),), events=())
    assert condition(decision, "Admitted") == ("True", "Admitted", "the queue has admitted the run")
    assert condition(decision, "Training") == ("False", "Starting", "the pods are starting")
    assert decision.status.phase == "Starting"
    decision = story.look(rays=(running_ray(),), pods=all_pods(), reading=make_reading(6, time=story.now))
    assert decision.status.phase == "Training"
    assert [(one.number, one.end_time) for one in decision.status.attempts] == [(1, None)]


@pytest.mark.parametrize(
    "ended",
    [
        failed_ray("Job entrypoint command failed with exit code 143"),
        make_ray(deployment_status="Complete", job_status="STOPPED"),
    ],
)
def test_an_eviction_that_ends_the_job_costs_no_retry(ended: Ray) -> None:
    story = Story(QUEUED | {"retry": {"limit": 0}})
    story.begin()
    story.train()
    decision = story.look(rays=(replace(ended, held=True),), pods=())
    assert (decision.status.attempts[0].reason or "").startswith("QuotaTaken: ")
    assert deleted(decision) == [("RayJob", "sums-1")]
    decision = story.look(rays=())
    assert decision.create[-1]["metadata"]["name"] == "sums-2", "at once, as it is no failure"


def test_a_rayjob_that_somebody_suspends_is_said() -> None:
    story = Story()
    story.begin()
    story.train()
    decision = story.settled(rays=(running_ray(held=True),), pods=())
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[:2] == ("False", "SuspendedByOthers")
    assert found[2].startswith(
        "RayJob sums-1 was suspended by somebody else: the run goes on from step 5 when"
    )
    decision = story.look(rays=(running_ray(),), pods=all_pods())
    assert condition(decision, "Admitted") is None
    assert decision.status.phase == "Training"
