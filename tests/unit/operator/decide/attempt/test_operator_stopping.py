from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import (
    CRASH,
    Story,
    all_pods,
    condition,
    deleted,
    failed_ray,
    kinds,
    make_pod,
    make_ray,
    make_reading,
    running_ray,
)

from rl_operator.model.seen import Ask


class TestSuspend:
    def test_a_checkpoint_comes_first(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        decision = story.look()
        assert decision.ask == 120.0
        assert decision.delete == ()
        assert decision.status.phase == "Stopping"
        assert decision.pull is not None, "the driver is still asked for its progress"
        story.wait(30)
        decision = story.answered("running")
        assert (decision.ask, decision.delete) == (None, ())
        decision = story.answered("done", reading=make_reading(step=9, checkpoint=9, time=story.now))
        assert deleted(decision) == [("RayJob", "sums-1")]
        decision = story.look(rays=(running_ray(deleting=True),))
        assert decision.delete == ()
        decision = story.look(rays=(), pods=all_pods())
        assert condition(decision, "Suspended") == ("Unknown", "Stopping", "the pods are being stopped")
        decision = story.settled(pods=())
        assert condition(decision, "Suspended") == (
            "True",
            "Suspended",
            "spec.suspend is true; it goes on from step 9",
        )
        assert decision.status.attempts[0].reason == "Suspended: suspended at step 9"
        assert decision.finalizer is False
        assert decision.status.phase == "Suspended"

    def test_resuming_is_a_new_attempt_that_counts_as_no_failure(self) -> None:
        story = Story({"retry": {"limit": 0}})
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.answered("done")
        story.look(rays=(), pods=())
        story.set({"suspend": False})
        decision = story.look(ask=None)
        assert kinds(decision) == ["ConfigMap", "RayJob"]
        assert decision.create[-1]["metadata"]["name"] == "sums-2"
        assert decision.status.attempts[1].from_step == 5
        assert condition(decision, "Suspended") == ("False", "Resumed", "the run goes on from step 5")

    @pytest.mark.parametrize(
        ("ask", "seconds", "said"),
        [
            (
                (
                    "refused",
                    "this run keeps no checkpoints",
                ),
                0,
                "this run keeps no checkpoints",
            ),
            (("running",), 121, "no checkpoint came within the grace period of 120 s"),
            (
                (
                    "failed",
                    "no connection",
                ),
                121,
                "(no connection)",
            ),
        ],
    )
    def test_the_wait_for_a_checkpoint_has_an_end(
        self, ask: tuple[str, ...], seconds: float, said: str
    ) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.look()
        story.wait(seconds)
        decision = story.answered(*ask)
        assert deleted(decision) == [("RayJob", "sums-1")]
        found = condition(decision, "Suspended")
        assert found is not None
        assert said in found[2]

    def test_a_failed_wish_is_repeated_within_the_grace_period(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.look()
        story.wait(20)
        decision = story.answered("failed", "no connection")
        assert decision.ask == 100.0

    def test_a_wish_of_an_earlier_attempt_does_not_count(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        assert story.answered("done", attempt=0).delete == ()

    def test_an_answer_to_an_earlier_wish_does_not_count(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        first = story.look().status.checkpoint_request
        assert first is not None
        assert (first.id, first.time) == ("1-20260301T120000Z", story.now)
        story.wait(5)
        assert story.look().status.checkpoint_request == first, "the same wish while it lasts"
        story.set({"suspend": False})
        answered = Ask(first.id, 1, "done")
        assert story.look(ask=answered).status.checkpoint_request is None
        story.wait(7200)
        story.set({"suspend": True})
        decision = story.look(reading=make_reading(time=story.now), ask=answered)
        assert (decision.delete, decision.ask) == ((), 120.0)
        assert decision.status.checkpoint_request is not None
        assert decision.status.checkpoint_request.id != first.id
        decision = story.look(ask=Ask(decision.status.checkpoint_request.id, 1, "done"))
        assert deleted(decision) == [("RayJob", "sums-1")]
        assert decision.status.checkpoint_request is not None, "until the RayJob is gone"
        assert story.look(rays=(), pods=()).status.checkpoint_request is None

    def test_nothing_trained_nothing_to_keep(self) -> None:
        story = Story()
        story.begin()
        story.set({"suspend": True})
        decision = story.look(rays=(make_ray(),), pods=(make_pod("head", ready=False),))
        assert decision.ask is None
        assert deleted(decision) == [("RayJob", "sums-1")]

    def test_a_run_that_begins_suspended_starts_nothing(self) -> None:
        story = Story({"suspend": True})
        decision = story.settled()
        assert decision.create == ()
        assert condition(decision, "Suspended") == ("True", "Suspended", "spec.suspend is true")

    def test_taken_back_before_the_stop(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.look()
        story.set({"suspend": False})
        decision = story.answered("running")
        assert condition(decision, "Suspended") == ("False", "Resumed", "the wish to suspend was taken back")
        assert decision.status.phase == "Training"

    def test_taken_back_after_the_stop(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.answered("done")
        story.set({"suspend": False})
        story.look(rays=(running_ray(deleting=True),))
        decision = story.look(rays=(), pods=())
        assert decision.requeue == 0.0
        assert decision.status.attempts[0].reason == "Suspended: suspended at step 5"
        assert kinds(story.look()) == ["ConfigMap", "RayJob"]

    def test_kuberay_that_does_not_let_go_is_named(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.answered("done")
        story.wait(301)
        decision = story.look(rays=(running_ray(deleting=True),))
        found = condition(decision, "Suspended")
        assert found is not None
        assert found[1] == "Stuck"

    def test_a_failure_while_stopping_is_no_success(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.look()
        decision = story.fail(CRASH)
        assert str(decision.status.attempts[0].reason).startswith("AppFailed")
        decision = story.look(rays=())
        assert condition(decision, "Suspended") == (
            "True",
            "Suspended",
            "spec.suspend is true; it goes on from step 5",
        )


class TestDelete:
    def test_a_last_checkpoint_is_asked_for(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.delete()
        decision = story.look()
        assert (decision.ask, decision.finalizer) == (120.0, None)
        assert decision.pull is not None
        assert decision.status.phase == "Stopping"
        assert story.answered("done").finalizer is False

    def test_it_does_not_wait_for_ever(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.delete()
        story.look()
        story.wait(121)
        assert story.answered("running").finalizer is False

    @pytest.mark.parametrize("rays", [(), (make_ray(),), (running_ray(deleting=True),), (failed_ray("x"),)])
    def test_nothing_trains(self, rays: tuple[Any, ...]) -> None:
        story = Story()
        story.begin()
        story.delete()
        decision = story.look(rays=rays)
        assert (decision.finalizer, decision.ask) == (False, None)

    def test_without_our_finalizer_nothing_is_done(self) -> None:
        story = Story()
        story.delete()
        decision = story.look()
        assert (decision.finalizer, decision.create, decision.delete) == (None, (), ())
