"""Attempts of a run: what ends one, what begins the next, and what is not tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    CRASH,
    NOW,
    Story,
    all_pods,
    condition,
    deleted,
    failed_ray,
    kinds,
    make_pod,
    make_profile,
    make_ray,
    make_reading,
    running_ray,
)

from rl_operator.model.decision import Note

USER_ERROR = (
    "Job entrypoint command failed with exit code 2, last available logs (truncated to 20,000 chars):\n"
    "rltrain: spec.model.source: found '/models/missing', there is no such folder\n"
)


@pytest.mark.parametrize(
    ("message", "reason", "sentence"),
    [
        (USER_ERROR, "InvalidInput", "spec.model.source: found '/models/missing', there is no such folder"),
        ("", "ValidationFailed", ""),
    ],
)
def test_what_a_retry_cannot_mend_is_not_retried(message: str, reason: str, sentence: str) -> None:
    story = Story()
    story.begin()
    ray = failed_ray(message)
    if reason == "ValidationFailed":
        ray = make_ray(deployment_status="ValidationFailed", message="too many characters")
        reason, sentence = "Refused", "KubeRay refuses the RayJob: too many characters"
    decision = story.settled(rays=(ray,))
    found = condition(decision, "Failed")
    assert found is not None
    assert found[:2] == ("True", reason)
    assert sentence in found[2]
    assert decision.status.phase == "Failed"
    assert len(decision.status.attempts) == 1
    assert decision.notes[-1].type == "Warning"


def test_failures_are_retried_with_back_off_up_to_the_limit() -> None:
    story = Story({"retry": {"limit": 2}})
    story.begin()
    waits = []
    for attempt in (1, 2, 3):
        story.look(rays=(running_ray(attempt),), pods=all_pods(attempt))
        story.look(reading=make_reading(step=attempt * 10, attempt=attempt, time=story.now))
        decision = story.fail(CRASH, attempt)
        if attempt == 3:
            break
        assert deleted(decision) == [("RayJob", f"sums-{attempt}")]
        found = condition(decision, "ClusterReady")
        assert found is not None
        due = story.now + timedelta(seconds=decision.requeue)
        assert found[1:] == (
            "Retrying",
            f"attempt {attempt} failed: learner 0 died; the next one begins at {due:%H:%M:%S} UTC",
        )
        assert decision.notes[-1] == Note("Warning", "AppFailed", f"attempt {attempt} failed: learner 0 died")
        waits.append(decision.requeue)
        story.wait(decision.requeue - 1)
        last = story.look(rays=())
        assert (last.create, last.requeue) == ((), 1.0), "not before the back-off is over"
        story.wait(1)
        decision = story.look()
        assert kinds(decision) == ["Secret", "ConfigMap", "RayJob"]
        assert decision.create[-1]["metadata"]["name"] == f"sums-{attempt + 1}"
        assert decision.status.attempts[-1].from_step == 5
        assert deleted(decision) == [("ConfigMap", f"sums-{attempt}")], (
            "one copy of the spec is kept of a run"
        )
    assert waits == [10.0, 20.0]
    assert condition(decision, "Failed") == (
        "True",
        "AppFailed",
        "attempt 3 failed: learner 0 died (it was the last of 3 attempts)",
    )
    assert [attempt.to_step for attempt in decision.status.attempts] == [10, 20, 30]


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time() -> None:
    story = Story({"retry": {"limit": 5}})
    story.begin()
    story.train()
    story.fail(CRASH)
    story.wait(10)
    story.look(rays=())
    story.train(2)
    decision = story.fail(CRASH, 2)
    assert condition(decision, "Failed") == (
        "True",
        "AppFailed",
        "attempt 2 failed: learner 0 died (it failed twice in the same way at the same step)",
    )


def test_no_attempt_begins_while_something_of_the_last_one_is_there() -> None:
    story = Story()
    story.begin()
    story.train()
    story.fail(CRASH)
    story.wait(10)
    head = make_pod("head", ready=False, deleting=story.now)
    decision = story.look(rays=(failed_ray(CRASH),), pods=(head,))
    assert (decision.create, deleted(decision)) == ((), [("RayJob", "sums-1")])
    decision = story.look(rays=(), pods=(head,))
    assert decision.create == ()
    assert condition(decision, "ClusterReady") == (
        "False",
        "Stopping",
        "waiting for sums-1-head-0 to be gone",
    )
    story.wait(179)
    assert story.look().create == ()
    story.wait(1)  # its node is dead: it will never be gone
    assert kinds(story.look()) == ["Secret", "ConfigMap", "RayJob"]


@pytest.mark.parametrize(
    "pods", [(), (make_pod("head", phase="Failed", ready=False),), (make_pod("head", deleting=NOW),)]
)
def test_a_lost_head_ends_the_attempt(pods: tuple[Any, ...]) -> None:
    story = Story()
    story.begin()
    story.train()
    decision = story.look(pods=pods)
    assert str(decision.status.attempts[0].reason).startswith("HeadLost: the head pod")
    assert deleted(decision) == [("RayJob", "sums-1")]
    assert decision.status.phase == "Pending"


def test_a_lost_head_with_no_attempt_left_takes_its_cluster_with_it() -> None:
    story = Story({"retry": {"limit": 0}})
    story.begin()
    story.train()
    decision = story.look(pods=())
    assert deleted(decision) == [("RayJob", "sums-1")]
    found = condition(decision, "Failed")
    assert found is not None
    assert found[2].endswith("(spec.retry.limit is 0)")


def test_a_rayjob_that_somebody_deleted_is_replaced() -> None:
    story = Story()
    story.begin()
    story.train()
    going = story.look(rays=(running_ray(deleting=True),))
    assert condition(going, "ClusterReady") == ("False", "Stopping", "RayJob sums-1 is being deleted")
    decision = story.look(rays=(), pods=())
    assert decision.status.attempts[0].reason == "Lost: its RayJob or RayCluster was deleted by somebody"


def test_out_of_memory_twice_is_the_end() -> None:
    story = Story({"retry": {"limit": 5}})
    story.begin()
    for attempt in (1, 2):
        story.train(attempt)
        pod = make_pod("learner", attempt=attempt, gone=True)
        killed = pod.containers[0].__class__("ray", ended="OOMKilled", exit_code=137)
        pod = pod.__class__(**{**pod.__dict__, "containers": (killed,)})
        decision = story.look(rays=(failed_ray(CRASH, attempt=attempt),), pods=(pod,))
        if attempt == 1:
            story.wait(10)
            assert kinds(story.look(rays=(), pods=())) == ["Secret", "ConfigMap", "RayJob"]
    found = condition(decision, "Failed")
    assert found is not None
    assert found[1] == "OutOfMemory"
    assert "1536Mi" in found[2]
    assert found[2].endswith("(it ran out of memory twice)")


def test_attempts_of_an_operator_that_died_are_adopted() -> None:
    story = Story()
    began = {"image": "trainer:7", "profile_hash": "p", "spec_hash": "s"}
    decision = story.look(rays=(make_ray(created=NOW - timedelta(seconds=5), began=began),))
    assert [(one.number, one.ray_job) for one in decision.status.attempts] == [(1, "sums-1")]
    first = decision.status.attempts[0]
    assert first.start_time == NOW - timedelta(seconds=5)
    assert (first.image, first.profile_hash, first.spec_hash) == ("trainer:7", "p", "s")
    assert "RayJob" not in kinds(decision)
    begun = Story().begin()
    assert decision.notes[0] == begun.notes[0], (
        "the event that it may not have written either, and the same one"
    )
    assert decision.notes[0].reason == "AttemptStarted"
    assert decision.status.attempts[0].from_step == begun.status.attempts[0].from_step == 0
    assert story.look().notes == ()


def test_an_adopted_attempt_begins_at_the_last_checkpoint() -> None:
    story = Story()
    story.begin()
    story.train()
    story.look(rays=(failed_ray("Job entrypoint command failed with exit code 1"),), pods=())
    story.wait(20)
    assert story.last is not None
    second = make_ray(2, created=story.now)
    decision = story.look(rays=(second,), reading=None)
    assert decision.status.attempts[1].from_step == 5
    assert decision.notes[0].message == "attempt 2 begins at step 5 as sums-2"


def test_success() -> None:
    story = Story()
    story.begin()
    story.train()
    story.wait(100)
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    last = make_reading(100, "Succeeded", time=story.now)
    decision = story.settled(rays=(done,), pods=(), reading=last)
    assert decision.status.phase == "Succeeded"
    assert condition(decision, "Succeeded") == ("True", "Succeeded", "the run is done")
    assert decision.finalizer is False
    assert decision.status.attempts[0].reason == "Succeeded: the run is done"
    assert decision.status.attempts[0].to_step == 100
    assert decision.delete == (), "KubeRay has stopped the cluster; the RayJob stays to be looked at"
    assert decision.pull is None


def test_objects_go_when_their_time_has_come() -> None:
    story = Story({"cleanup": {"ttlAfterFinished": "1m"}})
    story.begin()
    story.train()
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    story.look(rays=(done,), pods=())
    story.wait(30)
    decision = story.look()
    assert (decision.delete, decision.requeue) == ((), 30.0)
    story.wait(29)
    decision = story.look()
    assert (decision.delete, decision.requeue) == ((), 1.0)
    story.wait(1)
    assert deleted(story.look()) == [
        ("ConfigMap", "sums-1"),
        ("NetworkPolicy", "sums"),
        ("PodDisruptionBudget", "sums"),
        ("RayJob", "sums-1"),
    ]
    assert ("ConfigMap", "sums-1") in deleted(story.look(rays=())), "as long as anything is there"
    assert deleted(story.look(rays=(done,), live={}))[-1] == ("RayJob", "sums-1")
    assert story.look(rays=(), live={}).delete == ()
    story.set({"cleanup": {"ttlAfterFinished": "soon"}})
    assert story.look(rays=(done,)).delete == ()


def test_the_ttl_of_a_profile_counts() -> None:
    profile = make_profile(default=True, defaults={"cleanup": {"ttlAfterFinished": "1m"}})
    story = Story(profiles=[profile])
    story.begin()
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    story.look(rays=(done,))
    story.wait(61)
    assert ("RayJob", "sums-1") in deleted(story.look())


@pytest.mark.parametrize(
    ("cleanup", "goes"),
    [({"ttlAfterFinished": "1m"}, True), ({"ttlAfterFinished": "soon"}, False), ("x", False)],
)
def test_what_a_run_says_itself_of_its_end_needs_no_profile(cleanup: object, goes: bool) -> None:
    story = Story({"profile": "shared"}, [make_profile()])
    story.begin()
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    story.look(rays=(done,))
    story.profiles = []
    story.run = {**story.run, "spec": {**story.run["spec"], "cleanup": cleanup}}
    story.wait(600)
    decision = story.look()
    assert ((("RayJob", "sums-1") in deleted(decision)), decision.requeue) == (goes, 300.0)


def test_attempts_of_a_run_whose_profile_is_gone_are_counted_all_the_same() -> None:
    story = Story({"profile": "shared"}, [make_profile()])
    story.begin()
    for attempt in (1, 2, 3, 4):
        story.train(attempt)
        profiles, story.profiles = story.profiles, []
        decision = story.fail(CRASH.replace("learner 0", f"learner {attempt}"), attempt)
        story.profiles = profiles
        story.wait(300)
        story.look(rays=())
    found = condition(decision, "Failed")
    assert found is not None
    assert found[2].endswith("(it was the last of 4 attempts)")
