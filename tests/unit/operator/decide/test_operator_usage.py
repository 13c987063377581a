"""What became of a run's accelerators: counted from look to look, written rarely, lost where no checkpoint has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_worlds import (
    CRASH,
    GPU_POOLS,
    NOW,
    Story,
    all_pods,
    failed_ray,
    make_pod,
    make_profile,
    make_ray,
    make_reading,
    make_run,
    running_ray,
)

from rl_api.progress import CheckpointStatus, RunStatus, Usage
from rl_operator.decide.look import Look
from rl_operator.decide.usage import REFRESH, UNSEEN, WAITING_REFRESH, counted, evictions_of, with_usage
from rl_operator.model.needs import Asked, Needs
from rl_operator.model.seen import Ray, World
from rl_operator.plan.refused import Refused

GPU = {"profile": "gpu", "sampler": {"replicas": 2, "pools": ["h100"]}, "learner": {"pools": ["h100"]}}
ASKED = Asked(Needs(runs=1, learners=1, accelerators=2), Needs(samplers=1, accelerators=1), 2)


def usage(story: Story) -> Usage:
    found = RunStatus.model_validate(story.run["status"]).usage
    assert found is not None
    return found


def parts(found: Usage) -> dict[str, float]:
    """Everything that was counted."""
    names = ("accelerators", "trained", "unsaved", "started", "evicted", "failed", "waited_seconds")
    return {name: value for name in names if (value := getattr(found, name))}


def begun(spec: dict[str, Any] | None = None) -> Story:
    story = Story(GPU if spec is None else spec, [make_profile("gpu", pools=GPU_POOLS)])
    story.begin()
    return story


def trained(seconds: float, checkpoint: int | None = None) -> Story:
    """A run that waited for 30 s, started for 40 s and has trained for so long."""
    story = begun()
    story.wait(30)
    story.look(rays=(make_ray(),), pods=all_pods())
    story.wait(40)
    story.look(rays=(running_ray(),), reading=make_reading(time=story.now, checkpoint=None))
    story.wait(seconds)
    story.look(reading=make_reading(9, time=story.now, checkpoint=checkpoint))
    return story


def test_waiting_starting_and_training_are_told_apart_by_pool() -> None:
    story = trained(100)
    # The head is on the CPU pool, and a learner and two samplers have an accelerator each.
    assert parts(usage(story)) == {
        "accelerators": 3.0,
        "trained": 300.0,
        "unsaved": 300.0,
        "started": 120.0,
        "waited_seconds": 30.0,
    }
    assert list(usage(story).pools) == ["h100"]
    assert usage(story).pools["h100"].trained == 300.0


def test_a_pool_that_was_written_stays_though_its_pods_went_at_once() -> None:
    """Of a map that loses all that it had server-side apply makes a null, and the API server refuses the status."""
    story = begun()
    story.look(rays=(make_ray(),), pods=all_pods())
    assert usage(story).pools["h100"].accelerators == 3
    story.look(pods=())
    assert parts(usage(story)) == {}
    assert list(usage(story).pools) == ["h100"]


def test_of_a_run_without_accelerators_pods_count() -> None:
    story = begun({"profile": "gpu", "sampler": {"pools": ["cpu"]}, "learner": {"pools": ["cpu"]}})
    story.wait(1)
    story.look(rays=(make_ray(),), pods=all_pods())
    assert usage(story).accelerators == 4


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"rays": (failed_ray(CRASH),), "pods": ()}, {"trained": 300.0, "failed": 90.0}),
        ({"rays": (), "pods": ()}, {"trained": 300.0, "failed": 90.0}),
        (
            {"rays": (running_ray(deployment_status="Complete", job_status="SUCCEEDED"),), "pods": ()},
            {"trained": 390.0},
        ),
        (
            {"rays": (replace(failed_ray(CRASH), held=True),), "pods": ()},
            {"trained": 300.0, "evicted": 90.0},
        ),
        (
            {"rays": (failed_ray(CRASH.replace("exit code 1", "exit code 143")),), "pods": ()},
            {"trained": 300.0, "evicted": 90.0},
        ),
    ],
    ids=["failed", "deleted by somebody", "succeeded", "its queue took the quota back", "told to stop"],
)
def test_what_the_newest_checkpoint_does_not_hold_is_lost(
    change: dict[str, Any], lost: dict[str, float]
) -> None:
    story = trained(100)
    saved = replace(
        make_reading(10, time=story.now), checkpoint=CheckpointStatus(step=10, uri="a", time=story.now)
    )
    story.look(reading=saved)
    assert usage(story).unsaved == 0
    story.wait(30)
    story.look(**change)
    assert parts(usage(story)) == {"started": 120.0, "waited_seconds": 30.0, **lost}


def test_a_checkpoint_saves_what_came_before_it_was_complete() -> None:
    story = trained(100)
    kept = CheckpointStatus(step=8, uri="a", time=story.now - timedelta(seconds=20))
    story.look(reading=replace(make_reading(9, time=story.now), checkpoint=kept))
    assert parts(usage(story))["unsaved"] == 60.0


def test_a_suspension_without_a_checkpoint_loses_what_came_after_the_last_one() -> None:
    story = trained(100)
    story.set({"suspend": True})
    story.answered("refused", "there is nothing to save")
    story.look(rays=(), pods=())
    assert parts(usage(story)) == {"started": 120.0, "waited_seconds": 30.0, "evicted": 300.0}
    story.wait(10_000)
    story.set({"suspend": False})
    story.look()
    assert usage(story).waited_seconds == 30.0


def look_of(old: dict[str, Any], seconds: float, **world: Any) -> Look:
    """A look so many seconds after a status was written in which three accelerators had trained."""
    status = {
        "phase": "Training",
        "attempts": [{"number": 1, "startTime": NOW}],
        "checkpoint": {"step": 3, "uri": "a", "time": NOW},
        "conditions": [{"type": kind, "status": "True"} for kind in ("Accepted", "ClusterReady", "Training")],
        "usage": {
            "updatedAt": NOW,
            "accelerators": 3,
            "trained": 90,
            "unsaved": 60,
            "pools": {"h100": {"accelerators": 3, "trained": 90, "unsaved": 60}},
        },
    }
    run = {**make_run(GPU), "status": status | old}
    refused = Refused("InvalidSpec", "no such profile")
    return Look.first(World(run=run, **world), NOW + timedelta(seconds=seconds), refused)


WAITS = {
    "conditions": [{"type": "Accepted", "status": "True"}],
    "usage": {"updatedAt": NOW, "waitedSeconds": 5},
}
THERE = {"rays": (running_ray(asked=ASKED),), "pods": all_pods()}


@pytest.mark.parametrize(
    ("old", "world", "expected"),
    [
        ({}, THERE, {"accelerators": 4.0, "trained": 10890.0, "unsaved": 10860.0}),
        ({}, {}, {"trained": 90 + 3 * UNSEEN.total_seconds(), "unsaved": 60 + 3 * UNSEEN.total_seconds()}),
        (
            {},
            {"rays": (make_ray(ended=NOW + timedelta(seconds=600)),)},
            {"trained": 1890.0, "unsaved": 1860.0},
        ),
        (WAITS, {}, {"waited_seconds": 3605.0}),
        (
            WAITS,
            {
                "rays": (running_ray(asked=ASKED),),
                "pods": [replace(pod, started=NOW + timedelta(seconds=600)) for pod in all_pods()],
            },
            {"accelerators": 4.0, "waited_seconds": 605.0, "started": 12000.0},
        ),
    ],
    ids=["trains on", "gone, nobody knows when", "gone, its RayJob tells", "waits on", "began meanwhile"],
)
def test_an_operator_that_was_away_for_an_hour_goes_on_from_what_was_written(
    old: dict[str, Any], world: dict[str, Any], expected: dict[str, float]
) -> None:
    look = look_of(old, 3600, **world)
    assert parts(counted(look, look.old)) == expected


def evicted(**fields: Any) -> dict[str, Any]:
    return {"attempt": 1, "reason": "Preempted", "time": NOW + timedelta(seconds=5), **fields}


@pytest.mark.parametrize(
    ("new", "lost"),
    [
        ({"evictions": [evicted()]}, 0.0),
        ({"evictions": [evicted(released_time=NOW + timedelta(seconds=9))]}, 90.0),
        ({"conditions": [{"type": "Admitted", "status": "False", "reason": "Evicted"}]}, 90.0),
        ({"conditions": [{"type": "Admitted", "status": "False", "reason": "Queued"}]}, 0.0),
    ],
    ids=["a checkpoint may come", "the pods are gone", "evicted by a label's queue", "it waits"],
)
def test_an_eviction_loses_what_was_not_saved_when_the_pods_are_gone(
    new: dict[str, Any], lost: float
) -> None:
    look = look_of({}, 10)
    status = RunStatus.model_validate({**look.old.to_document(), **new}, by_name=True)
    found = counted(look, status)
    assert (found.evicted, found.trained, found.unsaved) == (
        lost,
        120.0 - lost,
        90.0 - lost if not lost else 0.0,
    )
    look = look_of({"evictions": [evicted(releasedTime=NOW)]}, 10)
    assert counted(look, look.old).evicted == 0.0, "an eviction loses once"


@pytest.mark.parametrize("training", ["True", "Unknown"])
def test_a_driver_that_is_silent_trains_until_it_is_known_to_be_dead(training: str) -> None:
    look = look_of({"conditions": [{"type": "Training", "status": training}]}, 10)
    assert counted(look, look.old).trained == 120.0


@pytest.mark.parametrize(
    ("pod", "held"),
    [
        ({}, 1.0),
        ({"node": ""}, 0.0),
        ({"phase": "Failed"}, 0.0),
        ({"gone": True}, 0.0),
        ({"deleting": NOW}, 1.0),
        ({"attempt": 0}, 0.0),
    ],
)
def test_a_pod_holds_what_it_has_while_it_is_on_a_node(pod: dict[str, Any], held: float) -> None:
    story = begun()
    story.wait(REFRESH.total_seconds())
    story.look(rays=(make_ray(),), pods=(make_pod("sampler", **pod),))
    assert usage(story).accelerators == held


def test_usage_alone_is_written_once_a_minute_and_when_the_pods_are_gone() -> None:
    story = trained(10)
    writes = []
    for second in range(1, 200):
        story.wait(1)
        before = story.run["status"]
        story.look()
        if story.run["status"] != before:
            writes.append(second)
    assert writes[:1] == [60]  # the driver that is silent since is another write
    assert len(writes) <= 4
    story = begun()
    story.look(rays=(make_ray(held=True),))
    first = usage(story).updated_at
    story.wait(WAITING_REFRESH.total_seconds() - 1)
    story.look()
    assert usage(story).updated_at == first
    story.wait(1)
    story.look()
    assert usage(story).waited_seconds == WAITING_REFRESH.total_seconds()


def test_what_is_over_is_written_once_more_when_its_pods_are_gone() -> None:
    done: Ray = running_ray(deployment_status="Complete", job_status="SUCCEEDED")
    story = trained(10)
    story.wait(5)
    decision = story.look(rays=(done,))
    (account,) = [note for note in decision.notes if note.reason == "Accounted"]
    assert account.message.startswith(
        "accelerator hours: 0.01 trained, 0.03 started, 0.00 lost to evictions, 0.00 lost"
    )
    assert "attempts: 1; evictions: 0; spec " in account.message
    story.wait(7)
    story.look(pods=())
    assert parts(usage(story)) == {"trained": 45.0, "started": 141.0, "waited_seconds": 30.0}
    ended = story.run["status"]
    for _ in range(3):
        story.wait(REFRESH.total_seconds())
        assert not [note for note in story.look().notes if note.reason == "Accounted"]
        assert story.run["status"] == ended


def test_a_run_of_an_earlier_version_is_counted_from_its_next_write_on() -> None:
    look = look_of({"usage": None}, 10, **THERE)
    decision = look.decide("Training")
    same = replace(decision, status=look.old)
    assert with_usage(look, same).status.usage is None
    found = with_usage(look, replace(decision, status=look.old.model_copy(update={"phase": "Stopping"})))
    assert found.status.usage is not None
    assert parts(found.status.usage) == {"accelerators": 4.0}
    assert list(found.status.usage.pools) == ["unknown"]


def test_evictions_are_those_of_all_attempts() -> None:
    status = RunStatus.model_validate(
        {"attempts": [{"number": 1, "preemptions": 30}], "evictions": [evicted()]}
    )
    assert evictions_of(status) == 30
