from __future__ import annotations

import pytest
from operator_worlds import (
    CRASH,
    NOW,
    Story,
    all_pods,
    condition,
    deleted,
    kinds,
    make_profile,
    make_ray,
    make_reading,
    make_run,
    running_ray,
)

from rl_operator.decide.reconcile import reconcile
from rl_operator.model.decision import Pull
from rl_operator.model.seen import Claim, World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import plan


def test_a_new_run_gets_everything_in_one_go() -> None:
    story = Story()
    decision = story.look()
    assert kinds(decision) == ["NetworkPolicy", "PodDisruptionBudget", "Secret", "ConfigMap", "RayJob"]
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
    assert story.answered("failed", "no answer within 3 s").finalizer is None
    assert story.answered("absent", "no connection").finalizer is False


class TestBlocked:
    def test_an_invalid_spec_is_refused_with_its_sentence(self) -> None:
        story = Story({"sampler": {"replicas": "two"}})
        decision = story.settled()
        found = condition(decision, "Accepted")
        assert found is not None
        assert found[:2] == ("False", "InvalidSpec")
        assert found[2].startswith("spec.sampler.replicas: found 'two', allowed: a whole number >= 1")
        assert decision.create == ()
        assert [note.reason for note in story.look().notes] == []

    @pytest.mark.parametrize("spec", [None, "text", [], 5, {}, {"model": None}])
    @pytest.mark.parametrize("status", [None, {}, {"attempts": "none"}, {"conditions": [{"type": 1}]}])
    def test_no_object_makes_it_crash(self, spec: object, status: object) -> None:
        run = make_run() | {"spec": spec, "status": status}
        decision = reconcile(World(run=run), NOW, plan(run, [], Settings()))
        assert condition(decision, "Accepted") is not None
        assert decision.create == ()

    def test_service_is_refused(self) -> None:
        found = condition(Story({"workload": "Service"}).look(), "Accepted")
        assert found is not None
        assert found[1] == "Unsupported"
        assert (
            "found 'Service', allowed: Job or Cluster; to serve a policy, apply an RLPolicyService"
            in found[2]
        )

    def test_a_missing_claim_is_waited_for(self) -> None:
        story = Story()
        decision = story.settled(claims={"ckpt": Claim(False)})
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[1] == "ClaimMissing"
        assert "'ckpt'" in found[2]
        assert kinds(story.look(claims={"ckpt": Claim(True)}))[-1] == "RayJob"

    def test_no_kuberay(self) -> None:
        story = Story()
        found = condition(story.settled(kuberay=False), "ClusterReady")
        assert found is not None
        assert found[1] == "KubeRayMissing"

    @pytest.mark.parametrize(
        ("refusal", "reason"),
        [
            (
                "the API server refuses: rayjobs is forbidden: exceeded quota: most, requested: 1",
                "QuotaExceeded",
            ),
            ("the run needs the name sums-1 for a ConfigMap", "ObjectRefused"),
        ],
    )
    def test_a_refused_object_is_no_attempt(self, refusal: str, reason: str) -> None:
        decision = Story().look(refusal=refusal)
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[1] == reason
        assert decision.status.attempts == []
        assert decision.create == ()

    def test_a_profile_that_goes_does_not_disturb_an_attempt(self) -> None:
        story = Story({"profile": "shared"}, [make_profile()])
        story.begin()
        before = story.train()
        story.profiles = []
        decision = story.look()
        assert condition(decision, "Accepted") == condition(before, "Accepted")
        assert decision.status.phase == "Training"
        assert decision.status.roles == before.status.roles
        story.fail(CRASH)
        story.wait(10)
        found = condition(story.look(rays=()), "Accepted")
        assert found is not None
        assert found[:2] == ("False", "ProfileMissing")

    def test_a_profile_that_changes_or_goes_does_not_lose_its_driver(self) -> None:
        port = {"defaults": {"server": {"port": 9000}}}
        story = Story({"profile": "shared"}, [make_profile(**port)])
        story.begin()
        rays = (running_ray(status_port=9000),)
        assert story.look(rays=rays, pods=all_pods()).pull == Pull(1, "10.0.0.7", 9000)
        for profiles in ([make_profile(defaults={"server": {"port": 9100}})], []):
            story.profiles = profiles
            decision = story.look()
            assert decision.pull == Pull(1, "10.0.0.7", 9000)
            assert decision.apply == (), "its network policy lets the operator in where it answers"

    @pytest.mark.parametrize(
        ("scheduling", "seconds"),
        [({"preemptionGracePeriod": "10m"}, 600.0), ({}, 120.0), ({"preemptionGracePeriod": "x"}, 120.0)],
    )
    def test_the_grace_of_a_run_whose_profile_is_gone(
        self, scheduling: dict[str, object], seconds: float
    ) -> None:
        story = Story({"profile": "shared"}, [make_profile()])
        story.begin()
        story.train()
        story.profiles = []
        story.set({"suspend": True, "scheduling": scheduling})
        assert story.look().ask == seconds

    @pytest.mark.parametrize(("limit", "seconds"), [("5m", 300.0), ("20m", 600.0)])
    def test_the_grace_of_a_run_whose_profile_has_come_to_allow_less(
        self, limit: str, seconds: float
    ) -> None:
        story = Story({"scheduling": {"preemptionGracePeriod": "10m"}}, [make_profile(default=True)])
        story.begin()
        story.train()
        story.profiles = [make_profile(default=True, limits={"maxPreemptionGracePeriod": limit})]
        story.set({"suspend": True})
        assert story.look().ask == seconds

    def test_kuberay_that_does_nothing(self) -> None:
        story = Story()
        story.begin()
        story.wait(61)
        decision = story.look(rays=(make_ray(deployment_status=""),))
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[1] == "KubeRayNotReacting"


class TestDeadline:
    def test_waiting_for_a_node_is_no_training(self) -> None:
        """Three hours in Pending of a run that may train for one: it fails neither then nor for that later."""
        story = Story({"stop": {"maxDuration": "1h"}})
        story.begin()
        story.look(rays=(make_ray(),))
        for _ in range(2):
            story.wait(4 * 3600)
            assert condition(story.look(), "Failed") is None
        decision = story.train()
        assert decision.status.attempts[0].ready_time == story.now
        story.wait(3 * 3600)
        assert condition(story.look(), "Failed") is None
        assert story.look().status.attempts[0].ready_time == decision.status.attempts[0].ready_time, (
            "it stays"
        )
        story.wait(60)
        found = condition(story.look(), "Failed")
        assert found is not None
        assert found[1] == "DeadlineExceeded"

    def test_attempts_that_never_had_their_pods_count_nothing(self) -> None:
        story = Story({"stop": {"maxDuration": "1s"}, "retry": {"limit": 9}})
        story.begin()
        story.wait(5 * 3600)
        story.fail(CRASH)
        story.wait(3600)
        assert condition(story.look(rays=()), "Failed") is None

    def test_an_attempt_that_an_older_version_began_counts_since_its_pods_were_there(self) -> None:
        story = Story({"stop": {"maxDuration": "1h"}})
        story.begin()
        story.wait(4 * 3600)
        story.train()
        story.run["status"]["attempts"][0].pop("readyTime")
        decision = story.settled()
        assert decision.status.attempts[0].ready_time is None, "nothing of what it has written changes"
        story.wait(3 * 3600 + 60)
        found = condition(story.look(), "Failed")
        assert found is not None
        assert found[1] == "DeadlineExceeded"


class TestAttemptKeeps:
    def test_what_it_began_with_and_the_next_says_what_changed(self) -> None:
        story = Story(profiles=[make_profile(default=True, images={"cpu": "old:1"})])
        begun = story.begin().status.attempts[0]
        assert (begun.image, begun.spec_hash) == ("old:1", story.last.status.effective_spec_hash)
        story.train()
        story.profiles = [make_profile(default=True, images={"cpu": "new:2"})]
        assert story.look().status.attempts[0].model_copy(update={"ready_time": None}) == begun
        story.fail(CRASH)
        story.wait(60)
        decision = story.look(rays=())
        second = decision.status.attempts[1]
        assert (second.image, second.profile_hash != begun.profile_hash) == ("new:2", True)
        (note,) = (note for note in decision.notes if note.reason == "AttemptStarted")
        assert note.message == (
            "attempt 2 begins at step 5 as sums-2, with image new:2 instead of old:1 and a changed profile "
            "and a changed effective spec"
        )

    def test_the_same_again_says_nothing_of_it(self) -> None:
        story = Story()
        story.begin()
        story.train()
        story.fail(CRASH)
        story.wait(60)
        (note,) = (note for note in story.look(rays=()).notes if note.reason == "AttemptStarted")
        assert note.message == "attempt 2 begins at step 5 as sums-2"


def test_nulls_of_a_run_whose_operator_died_before_it_could_write_what_it_had_begun() -> None:
    run = make_run({"checkpoint": None}) | {"nulls": ["checkpoint"]}
    world = World(run=run, rays=(make_ray(),))
    status = reconcile(world, NOW, plan(run, [], Settings())).status
    assert ([one.number for one in status.attempts], status.nulls) == ([1], ["checkpoint"])


def test_a_refused_object_keeps_no_attempt_from_being_stopped() -> None:
    story = Story()
    story.begin()
    story.train()
    story.set({"suspend": True})
    assert kinds(story.look(live={})) == ["NetworkPolicy", "PodDisruptionBudget"]
    decision = story.answered("done", refusal="the API server refuses: exceeded quota")
    assert (decision.create, decision.apply) == ((), ())
    assert deleted(decision) == [("RayJob", "sums-1")]
