"""Runs that are given another placement: a checkpoint first, then the next attempt has it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    NOW,
    SETTINGS,
    Story,
    condition,
    deleted,
    kinds,
    make_profile,
    make_reading,
    running_ray,
)
from queued_runs import Queued
from replanned_runs import HYBRID, REPLAN, placement, pods, stopped, trains, wanting, written

from rl_api.placement_status import WantedPlacement
from rl_api.progress import RunStatus
from rl_operator.decide.attempt.outcome import failed_so_far
from rl_operator.model.decision import Decision
from rl_operator.model.needs import Needs, Others
from rl_operator.plan.effective import Effective, plan


def test_the_next_attempt_has_what_the_driver_wants() -> None:
    story = trains()
    decision = story.look(reading=wanting())
    assert (deleted(decision), decision.status.phase) == ([], "Stopping")
    kept = placement(decision).next
    assert kept is not None
    assert (kept.attempt, kept.time, kept.shared_samplers) == (1, NOW, 1)
    [note] = [one for one in decision.notes if one.reason == "Replanned"]
    assert note.message == (
        "from placement disaggregated to hybrid (sharedSamplers 1, hand-over at 50%, parts of 4 groups): it would take 3 s "
        "per step where this one takes 4 s, 25% less"
    )
    decision = story.look()
    assert (decision.ask, deleted(decision)) == (120.0, []), "a checkpoint first"
    assert decision.pull is not None
    decision = story.answered("done")
    assert deleted(decision) == [("RayJob", "sums-1")]
    assert condition(decision, "Training") == ("False", "Replanned", note.message)

    decision = story.look(rays=())
    assert (kinds(decision), decision.status.attempts[0].end_time) == ([], None), "its pods still stop"
    decision = story.look(pods=())
    (attempt,) = decision.status.attempts
    assert attempt.reason == f"Replanned: {note.message}"
    assert failed_so_far(decision.status) == 0
    assert decision.status.checkpoint_request is None

    decision = story.look(reading=None, ask=None)
    assert kinds(decision)[-1] == "RayJob"
    assert [one.number for one in decision.status.attempts] == [1, 2]
    assert decision.status.attempts[1].from_step == 5
    said = written(decision)
    assert {
        name: said[name] for name in ("mode", "sharedSamplers", "partGroups", "handOverAt", "replan")
    } == {
        "mode": "auto",
        "sharedSamplers": 1,
        "partGroups": 4,
        "handOverAt": 0.5,
        "replan": {"threshold": 0.15, "steps": 20},
    }
    workers = {one["groupName"]: one["replicas"] for one in rendered(decision)}
    assert workers == {"learner": 2, "sampler": 1}
    shown = placement(decision)
    assert (shown.mode, shown.samplers, shown.shared, shown.part_groups) == ("hybrid", 2, 1, 4)
    assert (shown.predicted_step_seconds, shown.wanted, shown.next) == (3.0, None, None)
    assert shown.planned == kept
    assert shown.reason.startswith("placement.mode is auto, and the driver of attempt 1 planned it: it would")


def rendered(decision: Decision) -> list[dict[str, Any]]:
    """Worker groups of the RayJob that is made."""
    found: list[dict[str, Any]] = decision.create[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return found


def test_later_attempts_and_a_restarted_operator_keep_it() -> None:
    story = trains()
    stopped(story)
    before = story.run
    decision = story.look(reading=None, ask=None)
    # The operator dies before it writes what it made.
    story.run = before
    new = story.look(rays=(running_ray(2),), pods=pods(2)[:-1], reading=None)
    assert placement(new).planned == placement(decision).planned
    assert placement(new).shared == 1
    story.fail("CRASH", attempt=2)
    story.wait(60)
    third = story.look(rays=(), pods=(), reading=None)
    assert third.status.attempts[-1].number == 3
    assert written(third)["sharedSamplers"] == 1
    assert placement(third).planned == placement(decision).planned


@pytest.mark.parametrize("of_the_user", ["auto", "swap"])
def test_what_becomes_of_tensors_stays_as_the_user_has_it(of_the_user: str) -> None:
    """Each attempt decides auto by its devices; drivers of older versions say what theirs came to."""
    replan = {"placement": {"replan": {}, "residency": of_the_user}}
    story = trains(replan)
    stopped(story, HYBRID.model_copy(update={"residency": "keep"}))
    decision = story.look(reading=None, ask=None)
    assert placement(decision).planned is not None
    said = written(decision)
    assert (said["sharedSamplers"], said["residency"]) == (1, of_the_user)


@pytest.mark.parametrize(
    ("spec", "shared"),
    [
        ({"stop": {"maxSteps": 200}}, 1),
        ({"placement": {"replan": None}}, 1),
        ({"placement": {"sharedSamplers": 2}}, 2),
        ({"placement": {"mode": "disaggregated", "replan": None}}, None),
        # What does not go with the rest is given up.
        ({"algorithm": {"promptsPerStep": 2}}, None),
    ],
)
def test_what_the_user_says_of_the_placement_wins(spec: dict[str, Any], shared: int | None) -> None:
    story = trains()
    stopped(story)
    story.set(spec)
    decision = story.look(reading=None, ask=None)
    assert written(decision)["sharedSamplers"] == shared
    assert (placement(decision).planned is not None) is (shared == 1)
    # And once given up, it stays so.
    later = Story()
    later.run = {**story.run, "spec": {**story.run["spec"], "placement": {"replan": {}}}}
    found = plan(later.run, [], SETTINGS)
    assert isinstance(found, Effective)
    assert (found.planned is not None) is (shared == 1)


def test_a_driver_that_changes_its_mind_is_left_alone() -> None:
    """Before anything was done; what an earlier attempt's said, or only the status does, is not acted upon either."""
    story = trains({"placement": {}})
    assert placement(story.look(reading=wanting())).wanted == HYBRID
    decision = story.look(reading=wanting(None))
    assert (placement(decision).wanted, placement(decision).next) == (None, None)
    story.look(reading=wanting())
    story.set(REPLAN)
    decision = story.look(reading=None)
    assert placement(decision).next is None
    decision = story.look(reading=wanting(attempt=2))
    assert placement(decision).next is None


def test_without_replan_the_status_says_what_would_be_better_and_nothing_changes() -> None:
    story = trains({"placement": {}})
    decision = story.settled(reading=wanting())
    assert placement(decision).wanted == HYBRID
    assert (placement(decision).next, decision.status.phase) == (None, "Training")


def why_not(story: Story, wanted: WantedPlacement = HYBRID, **changes: Any) -> str:
    """Why the run keeps its placement."""
    decision = story.look(reading=wanting(wanted), **changes)
    found = placement(decision)
    assert (found.next, decision.status.checkpoint_request) == (None, None)
    assert found.wanted is not None
    assert [one.message for one in decision.notes if one.reason == "ReplanRefused"] == [
        f"placement {told(found.wanted)} is not given: {found.wanted.refused}"
    ]
    again = story.look()
    assert again.notes == (), "told once"
    assert placement(again) == found
    return found.wanted.refused


def told(wanted: WantedPlacement) -> str:
    return (
        "hybrid (sharedSamplers 1, hand-over at 50%, parts of 4 groups)"
        if wanted.shared_samplers == 1
        else wanted.mode
    )


ALONE = HYBRID.model_copy(
    update={"mode": "disaggregated", "shared_samplers": 0, "part_groups": None, "hand_over_at": None}
)


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    story = trains()
    story.set({"stop": {"maxSteps": 200}})
    assert why_not(story) == "the run's spec or its profile's defaults have changed since attempt 1 began"
    found = why_not(trains({"checkpoint": None}))
    assert found == "spec.checkpoint is null, and the run would begin anew"
    wrong = HYBRID.model_copy(update={"shared_samplers": 1, "part_groups": 9})
    story = trains()
    decision = story.look(reading=wanting(wrong))
    wanted = placement(decision).wanted
    assert wanted is not None
    assert "spec.placement.partGroups: found 9, allowed" in wanted.refused
    # Of what it has already nothing is made anew.
    assert why_not(trains({"placement": {"replan": {}, "sharedSamplers": 0}}), ALONE) == "the run has it"


SHARING: dict[str, Any] = {"placement": {"replan": {}, "sharedSamplers": 1}}


def test_a_placement_of_more_pods_keeps_to_limits() -> None:
    limits = {"perNamespace": {"maxAccelerators": 8}}
    profile = make_profile(default=True, pools=GPU_POOLS, limits=limits)
    story = trains(SHARING, profile)
    others = Others(Needs(accelerators=5))
    assert "would have 9 accelerators with this one" in why_not(story, ALONE, others=others)
    # Where they have gone, it is given.
    decision = story.look(others=Others(Needs(accelerators=4)))
    assert placement(decision).next is not None

    story = trains(
        SHARING, make_profile(default=True, limits={"maxSamplers": 2, "perNamespace": {"maxSamplers": 1}})
    )
    assert "allowed: at most 1" in why_not(story, ALONE)


def test_a_run_in_a_queue_takes_no_more_than_was_admitted() -> None:
    """Of a placement with fewer pods the Workload is made anew, and its quota is asked for again."""
    both = {"sampler": {"replicas": 2, "minReplicas": 2}, "scheduling": {"queue": "team-a"}}
    one = {"learner": {"replicas": 1}}
    for spec, wanted, why in (
        ({**SHARING, **one}, ALONE, "queue team-a has admitted the run with N of cpu, and it would take N"),
        # All learners' pods are alike, and have room for a sampler.
        ({}, HYBRID, "queue team-a has admitted the run with N of memory, and it would take N"),
        (one, HYBRID, None),
    ):
        run = Queued(REPLAN | both | spec)
        run.admit()
        run.queue(rays=(running_ray(),), pods=pods(), reading=make_reading())
        found = placement(run.look(reading=wanting(wanted)))
        assert found.wanted is not None
        refused = re.sub(r"[0-9][0-9.]*(Gi)?", "N", found.wanted.refused)
        assert (refused, found.next is None) == (why or "", why is not None)
        if why is not None:
            continue
        run.story.answered("done")
        decision = run.look(rays=(), pods=())
        assert decision.status.attempts[0].end_time is not None
        decision = run.look(reading=None, ask=None)
        assert deleted(decision) == [("Workload", "sums")], "its pods are others"
        decision = run.look(workloads=())
        (workload,) = [one for one in decision.create if one["kind"] == "Workload"]
        assert {one["name"]: one["count"] for one in workload["spec"]["podSets"]} == {
            "head": 1,
            "learner": 1,
            "sampler": 1,
        }


@pytest.mark.parametrize("wrong", [{"planned": 5}, {"planned": {"mode": "auto"}}, {"next": {"attempt": 0}}])
def test_a_status_that_is_none_plans_nothing(wrong: dict[str, Any]) -> None:
    story = Story(REPLAN)
    for status in ({"placement": wrong}, {"placement": 5}, {"placement": wrong, "attempts": 7}, 5):
        found = plan({**story.run, "status": status}, [], SETTINGS)
        assert isinstance(found, Effective)
        assert found.planned is None


def test_statuses_of_older_versions_have_no_such_fields() -> None:
    old = {"placement": {"mode": "hybrid", "samplers": 3, "shared": 1, "learners": 2}}
    status = RunStatus.model_validate(old)
    assert status.placement is not None
    assert (status.placement.wanted, status.placement.planned, status.placement.next) == (None, None, None)
    assert "planned" not in status.model_dump(by_alias=True, exclude_none=True)["placement"]
