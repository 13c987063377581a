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

from rl_operator.model.decision import Target
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
        # KubeRay lets go of it only with the Secret, which somebody may have deleted.
        decision = story.look(rays=(running_ray(deleting=True),))
        assert decision.delete == (Target("RayCluster", "sums-1-abcde", "cluster-1"),)
        assert story.look(rays=(running_ray(deleting=True, cluster_uid=""),)).delete == ()
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
        assert kinds(decision) == ["Secret", "ConfigMap", "RayJob"]
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
                "there is no new checkpoint (this run keeps no checkpoints)",
            ),
            (("done",), 0, "the checkpoint is written"),
            (("running",), 120, "no checkpoint came within the grace period of 120 s"),
            (
                (
                    "failed",
                    "no connection",
                ),
                121,
                "no checkpoint came within the grace period of 120 s (no connection)",
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
        stopping = ("Unknown", "Stopping", f"{said}; the pods are being stopped")
        assert condition(decision, "Suspended") == stopping
        for kind, reason in (("Training", "Suspended"), ("ClusterReady", "Stopping")):
            assert condition(decision, kind) == ("False", reason, "the run is being suspended")

    def test_the_wait_lasts_to_its_last_second(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.look()
        story.wait(119)
        decision = story.look()
        assert (decision.ask, decision.delete) == (1.0, ())
        waiting = ("Unknown", "Checkpointing", "waiting for the driver's checkpoint")
        assert condition(decision, "Suspended") == waiting
        story.wait(1)
        decision = story.look()
        assert (decision.ask, deleted(decision)) == (None, [("RayJob", "sums-1")])
        found = condition(decision, "Suspended")
        assert found is not None
        assert found[2] == "no checkpoint came within the grace period of 120 s; the pods are being stopped"

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
        found = condition(decision, "Suspended")
        assert found is not None
        assert found[2] == "no training was under way; the pods are being stopped"

    def test_what_its_driver_has_said_is_training_too(self) -> None:
        story = Story()
        story.begin()
        story.look(rays=(running_ray(),), pods=all_pods(), reading=make_reading(phase="Starting"))
        story.set({"suspend": True})
        assert story.look().ask == 120.0
        assert story.look(reading=None).ask is None

    def test_a_cluster_in_which_nobody_trains_any_more(self) -> None:
        story = Story({"workload": "Cluster"})
        story.look()
        cluster = make_ray(kind="RayCluster", deployment_status="", cluster_state="ready", cluster="sums-1")
        story.look(rays=(cluster,), pods=all_pods(), reading=make_reading())
        story.set({"suspend": True})
        found = condition(story.answered("absent", "no connection"), "Suspended")
        assert found is not None
        assert found[2] == "nobody trains in it now; the pods are being stopped"

    def test_a_driver_of_a_job_that_is_absent_may_come_back(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        assert story.answered("absent", "no connection").ask == 120.0

    def test_a_run_that_begins_suspended_starts_nothing(self) -> None:
        story = Story({"suspend": True})
        decision = story.settled()
        assert decision.create == ()
        assert condition(decision, "Suspended") == ("True", "Suspended", "spec.suspend is true")
        assert condition(decision, "ClusterReady") is None
        assert condition(decision, "Training") is None

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
        assert kinds(story.look()) == ["Secret", "ConfigMap", "RayJob"]

    def test_kuberay_that_does_not_let_go_is_named(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.answered("done")
        story.wait(300)
        decision = story.look(rays=(running_ray(deleting=True),))
        found = condition(decision, "Suspended")
        assert found is not None
        assert found[1] == "Stopping"
        story.wait(1)
        decision = story.look()
        assert condition(decision, "Suspended") == (
            "Unknown",
            "Stuck",
            "KubeRay does not remove the RayJob: is the KubeRay operator running?",
        )
        assert (decision.status.phase, decision.requeue) == ("Stopping", 2.0)

    def test_pods_that_never_go_are_not_waited_for(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.set({"suspend": True})
        story.answered("done")
        story.look(rays=())
        story.wait(300)
        assert story.look().status.phase == "Stopping"
        story.wait(1)
        decision = story.look()
        assert decision.status.phase == "Suspended"
        for kind in ("ClusterReady", "Training"):
            assert condition(decision, kind) == ("False", "Suspended", "the run is suspended")
        assert {role.ready for role in decision.status.roles.values()} == {0}

    def test_a_run_that_is_suspended_before_its_first_checkpoint(self) -> None:
        story = Story()
        story.begin()
        story.set({"suspend": True})
        decision = story.look(rays=(), pods=())
        assert decision.status.attempts[0].reason == "Suspended: suspended before the first checkpoint"
        assert condition(decision, "Suspended") == ("True", "Suspended", "spec.suspend is true")
        assert decision.requeue == 300.0

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
    def test_a_last_checkpoint_is_asked_for_then_the_rayjob_goes_then_the_run(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.delete()
        decision = story.look()
        assert (decision.ask, decision.finalizer, decision.delete) == (120.0, None, ())
        assert decision.pull is not None
        assert decision.status.phase == "Stopping"
        decision = story.answered("done")
        assert (decision.finalizer, deleted(decision)) == (None, [("RayJob", "sums-1")])
        # With the run goes the Secret, without which KubeRay would never let go of a RayJob whose cluster is there.
        decision = story.look(rays=(running_ray(deleting=True),))
        assert (decision.finalizer, deleted(decision)) == (None, [("RayCluster", "sums-1-abcde")])
        decision = story.look(rays=(running_ray(deleting=True, cluster_uid=""),))
        assert (decision.finalizer, decision.delete) == (False, ())

    def test_it_does_not_wait_for_ever(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.delete()
        story.look()
        story.wait(121)
        assert deleted(story.answered("running")) == [("RayJob", "sums-1")]
        story.wait(180)
        assert story.look(rays=(running_ray(deleting=True),)).finalizer is False

    @pytest.mark.parametrize(
        "rays",
        [
            (),
            (make_ray(cluster_uid=""),),
            (running_ray(deleting=True, cluster_uid=""),),
            (failed_ray("x"),),
            (make_ray(kind="RayCluster", cluster="sums-1"),),
        ],
    )
    def test_nothing_trains(self, rays: tuple[Any, ...]) -> None:
        story = Story()
        story.begin()
        story.delete()
        decision = story.look(rays=rays)
        assert (decision.finalizer, decision.ask) == (False, None)

    def test_a_rayjob_that_has_just_been_made_goes_first(self) -> None:
        story = Story()
        story.begin()
        story.delete()
        decision = story.look(rays=(make_ray(),))
        assert (decision.finalizer, deleted(decision)) == (None, [("RayJob", "sums-1")])

    def test_without_our_finalizer_nothing_is_done(self) -> None:
        story = Story()
        story.delete()
        decision = story.look()
        assert (decision.finalizer, decision.create, decision.delete) == (None, (), ())
