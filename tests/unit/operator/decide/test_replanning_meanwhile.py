"""Runs that are given another placement, and what may come between: no checkpoint, a drained node, a failure, an end."""

from __future__ import annotations

from operator_worlds import (
    deleted,
)
from replanned_runs import placement, trains, wanting, written

from rl_operator.decide.attempt.outcome import failed_so_far


def test_a_run_without_a_new_checkpoint_keeps_its_placement_in_this_attempt() -> None:
    story = trains()
    story.look(reading=wanting())
    decision = story.answered("refused", "the disk is full")
    found = placement(decision)
    assert found.next is None
    assert found.wanted is not None
    assert (
        found.wanted.refused
        == "no checkpoint was written for it: there is no new checkpoint (the disk is full)"
    )
    assert (decision.status.phase, deleted(decision)) == ("Training", [])
    assert decision.status.checkpoint_request is None
    assert placement(story.look(ask=None)) == found


def test_what_takes_too_long_is_not_waited_for() -> None:
    story = trains()
    story.look(reading=wanting())
    story.look()
    story.wait(121)
    decision = story.look()
    assert placement(decision).next is None
    assert decision.status.phase == "Training"


def test_an_operator_that_dies_under_way_goes_on_where_it_was() -> None:
    story = trains()
    story.look(reading=wanting())
    # The new one has heard nothing of the driver yet.
    assert story.look(reading=None).ask == 120.0
    assert deleted(story.answered("done")) == [("RayJob", "sums-1")]


def test_a_run_that_is_suspended_meanwhile_goes_on_with_it() -> None:
    story = trains()
    story.look(reading=wanting())
    story.set({"suspend": True})
    story.look()
    story.answered("done")
    decision = story.look(rays=(), pods=())
    assert decision.status.attempts[0].reason.startswith("Suspended")  # type: ignore[union-attr]
    story.set({"suspend": False})
    decision = story.look(reading=None, ask=None)
    assert written(decision)["sharedSamplers"] == 1


def test_a_run_that_fails_meanwhile_is_tried_again_with_it() -> None:
    story = trains()
    story.look(reading=wanting())
    decision = story.fail("learner 0 died")
    assert failed_so_far(decision.status) == 1
    story.wait(60)
    decision = story.look(rays=(), reading=None)
    assert written(decision)["sharedSamplers"] == 1


def test_a_node_that_is_drained_meanwhile_is_left_by_the_same_stop() -> None:
    story = trains()
    story.look(reading=wanting())
    story.look(cordoned={"node-1": "is cordoned"})
    story.answered("done")
    story.look(rays=())
    decision = story.look(pods=())
    decision = story.look(reading=None, ask=None)
    assert decision.status.attempts[0].reason.startswith("Replanned")  # type: ignore[union-attr]
    decision = story.look(cordoned={})
    assert written(decision)["sharedSamplers"] == 1
    assert decision.status.attempts[-1].number == 2


def test_one_on_a_drained_node_is_moved_first() -> None:
    story = trains()
    decision = story.look(reading=wanting(), cordoned={"node-1": "is cordoned"})
    assert placement(decision).next is None
    assert decision.status.evictions[0].reason == "NodeDrained"


def test_a_deleted_run_ends() -> None:
    story = trains()
    story.look(reading=wanting())
    story.delete()
    story.look()
    decision = story.answered("done")
    assert deleted(decision) == [("RayJob", "sums-1")]
