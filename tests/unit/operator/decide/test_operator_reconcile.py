from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import (
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

from rl_operator.model.seen import Ask


def test_a_new_run_gets_everything_in_one_go() -> None:
    story = Story()
    decision = story.look()
    assert kinds(decision) == ["Secret", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "RayJob"]
    assert decision.finalizer is True
    assert decision.status.phase == "Starting"
    assert condition(decision, "Accepted") == ("True", "Valid", "the run can be carried out")
    assert [note.reason for note in decision.notes] == ["AttemptStarted"]
    attempt = decision.status.attempts[0]
    assert (attempt.number, attempt.ray_job, attempt.start_time, attempt.from_step) == (1, "sums-1", NOW, 0)
    assert decision.status.roles["sampler"].desired == 2
    assert decision.status.effective_spec_hash


def test_a_second_look_writes_nothing() -> None:
    story = Story()
    story.begin()
    decision = story.settled(rays=(make_ray(),))
    assert decision.create == ()
    story.settled(rays=(running_ray(),), pods=all_pods(), reading=make_reading())


def test_objects_that_differ_are_written_again() -> None:
    story = Story()
    story.begin()
    live = dict(story.world.live)
    policy = live["NetworkPolicy", "sums"]
    live["NetworkPolicy", "sums"] = type(policy)(policy.uid, policy.hash, {**policy.spec, "ingress": []})
    budget = live.pop(("PodDisruptionBudget", "sums"))
    decision = story.look(rays=(make_ray(),), live=live)
    assert [one["kind"] for one in decision.apply] == ["NetworkPolicy"]
    assert kinds(decision) == ["PodDisruptionBudget"]
    added = {**budget.spec, "maxUnavailable": None}
    live["PodDisruptionBudget", "sums"] = type(budget)(budget.uid, budget.hash, added)
    live["NetworkPolicy", "sums"] = policy
    assert story.look(live=live).apply == (), "what the API server adds is no difference"


def test_training_is_shown() -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(make_ray(),), pods=(make_pod("head"), make_pod("learner", ready=False)))
    assert condition(decision, "ClusterReady") == ("False", "Starting", "the pods are starting")
    assert decision.pull is None
    decision = story.look(rays=(running_ray(),), pods=all_pods())
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    assert condition(decision, "Training") == ("False", "Starting", "the driver has not answered yet")
    assert decision.pull is not None
    assert (decision.pull.service, decision.pull.port) == ("sums-1-abcde-head-svc", 8090)
    assert decision.status.dashboard_url == "http://sums-1-abcde-head-svc.team-a.svc:8265"
    decision = story.train()
    assert decision.status.phase == "Training"
    assert condition(decision, "Training") == ("True", "Running", "the driver reports progress")
    assert decision.status.progress is not None
    assert decision.status.progress.step == 7
    assert decision.status.checkpoint is not None
    assert decision.status.checkpoint.step == 5
    assert [note.reason for note in decision.notes] == ["Training"]
    assert {name: (role.ready, role.desired) for name, role in decision.status.roles.items()} == {
        "head": (1, 1),
        "learner": (1, 1),
        "sampler": (2, 2),
    }


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        ("Starting", "Starting"),
        ("WarmStart", "WarmStart"),
        ("Evaluating", "Evaluating"),
        ("Succeeded", "Stopping"),
    ],
)
def test_the_driver_names_the_phase(phase: str, shown: str) -> None:
    story = Story()
    story.begin()
    decision = story.look(rays=(running_ray(),), pods=all_pods(), reading=make_reading(phase=phase))
    assert decision.status.phase == shown


def test_progress_that_says_the_same_is_not_written() -> None:
    story = Story()
    story.begin()
    first = story.train()
    story.wait(10)
    assert story.look(reading=make_reading(time=story.now)).status == first.status
    story.wait(30)
    later = story.look(reading=make_reading(time=story.now))
    assert later.status.progress is not None
    assert later.status.progress.updated_at == story.now


def test_a_silent_driver_is_said() -> None:
    story = Story()
    story.begin()
    story.train()
    story.wait(61)
    decision = story.look(reading_error="no connection (Connection refused)")
    assert condition(decision, "Training") == (
        "Unknown",
        "DriverSilent",
        "the driver does not answer: no connection (Connection refused)",
    )


def test_an_operator_that_starts_anew_keeps_what_it_does_not_know_yet() -> None:
    story = Story()
    story.begin()
    before = story.train()
    after = story.look(reading=None)
    assert after.status == before.status
    assert after.pull is not None


def test_a_lost_sampler_does_not_end_the_attempt() -> None:
    story = Story()
    story.begin()
    story.train()
    decision = story.look(pods=all_pods()[:3])
    assert condition(decision, "ClusterReady") == (
        "True",
        "SamplersMissing",
        "1 of 2 samplers are ready, enough to train: starting",
    )
    assert condition(decision, "Training") is not None
    assert decision.status.roles["sampler"].ready == 1
    assert decision.status.roles["sampler"].reason == "starting"
    assert decision.status.attempts[0].end_time is None


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


UNREAD = "nobody was there to read its last figures: they are in summary.json of its folder"


@pytest.mark.parametrize(
    ("stop", "trained", "step", "sentence"),
    [
        ({"maxSteps": 100}, True, 100, "the run is done"),  # no other end is a success
        ({"maxSteps": 30}, False, 30, "the run is done"),
        ({"maxSteps": 100, "targetReward": 0.9}, True, 7, f"the run is done; {UNREAD}"),
        ({"maxSteps": 100, "maxDuration": "1h"}, False, None, f"the run is done; {UNREAD}"),
    ],
)
def test_a_run_that_ends_while_no_operator_runs(
    stop: dict[str, Any], trained: bool, step: int | None, sentence: str
) -> None:
    story = Story({"stop": stop})
    story.begin()
    if trained:
        story.train()
    story.wait(1000)
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    decision = story.settled(rays=(done,), pods=(), reading=None)
    assert condition(decision, "Succeeded") == ("True", "Succeeded", sentence)
    progress = decision.status.progress
    assert (progress.step if progress else None) == step
    assert decision.status.attempts[0].to_step == step
    assert progress is None or progress.phase == "Succeeded"


def test_the_last_steps_of_a_failed_job_are_in_its_log() -> None:
    story = Story()
    story.begin()
    story.train()
    log = "Job entrypoint command failed with exit code 1, last available logs:\n"
    log += "step 8/100  reward 0.25  speed 9 tokens/s\nstep 9/100  reward -  speed 9 tokens/s\nrltrain: no luck\n"
    decision = story.look(rays=(failed_ray(log),), pods=())
    assert decision.status.attempts[0].to_step == 9
    progress = decision.status.progress
    assert progress is not None
    assert (progress.step, progress.max_steps, progress.reward) == (9, 100, None)


def test_the_whole_run_has_a_deadline() -> None:
    story = Story({"stop": {"maxDuration": "10m"}})
    story.begin()
    story.train()
    story.wait(2 * 600 + 3601)
    decision = story.look(reading=make_reading(time=story.now))
    found = condition(decision, "Failed")
    assert found is not None
    assert found[1] == "DeadlineExceeded"
    assert deleted(decision) == [("RayJob", "sums-1")]


def test_objects_go_when_their_time_has_come() -> None:
    story = Story({"cleanup": {"ttlAfterFinished": "1m"}})
    story.begin()
    story.train()
    done = make_ray(deployment_status="Complete", job_status="SUCCEEDED")
    story.look(rays=(done,), pods=())
    story.wait(30)
    decision = story.look()
    assert (decision.delete, decision.requeue) == ((), 30.0)
    story.wait(30)
    assert deleted(story.look()) == [
        ("ConfigMap", "sums-1"),
        ("Secret", "sums-status"),
        ("NetworkPolicy", "sums"),
        ("PodDisruptionBudget", "sums"),
        ("RayJob", "sums-1"),
    ]
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


def test_an_interactive_cluster() -> None:
    story = Story({"workload": "Cluster"})
    decision = story.look()
    assert kinds(decision)[-1] == "RayCluster"
    ready = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready", cluster="sums-1")
    decision = story.settled(rays=(ready,), pods=all_pods())
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    assert decision.pull is not None
    # Nobody has begun to train in it.
    assert decision.status.phase == "Ready"
    assert condition(decision, "Training") == (
        "False",
        "Idle",
        "the cluster waits for somebody: rltrain exec works in it",
    )
    story.set({"suspend": True})
    decision = story.look()
    assert deleted(decision) == [("RayCluster", "sums-1")]


def test_an_interactive_cluster_in_which_somebody_trained() -> None:
    story = Story({"workload": "Cluster"})
    story.look()
    ready = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready", cluster="sums-1")
    decision = story.look(rays=(ready,), pods=all_pods(), reading=make_reading())
    assert decision.status.phase == "Training"
    story.wait(61)  # and the driver has been silent since
    decision = story.look()
    assert (decision.status.phase, condition(decision, "Training")[1]) == ("Ready", "Idle")
    # A checkpoint is asked for all the same: it may be busy. Where nobody listens, nobody has one to write.
    story.delete()
    assert story.look().ask == 120.0
    assert story.look(ask=Ask(1, "failed", "no answer within 3 s")).finalizer is None
    assert story.look(ask=Ask(1, "absent", "no connection")).finalizer is False
