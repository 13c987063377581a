from __future__ import annotations

import pytest
from operator_worlds import (
    CRASH,
    NOW,
    Story,
    condition,
    kinds,
    make_profile,
    make_ray,
    make_run,
)

from rl_operator.decide.reconcile import reconcile
from rl_operator.model.seen import World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import plan


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
        assert "found 'Service', allowed in this version: Job or Cluster" in found[2]

    def test_a_missing_claim_is_waited_for(self) -> None:
        story = Story()
        decision = story.settled(claim_exists=False)
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[1] == "ClaimMissing"
        assert "'ckpt'" in found[2]
        assert kinds(story.look(claim_exists=True))[-1] == "RayJob"

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

    def test_kuberay_that_does_nothing(self) -> None:
        story = Story()
        story.begin()
        story.wait(61)
        decision = story.look(rays=(make_ray(deployment_status=""),))
        found = condition(decision, "ClusterReady")
        assert found is not None
        assert found[1] == "KubeRayNotReacting"
