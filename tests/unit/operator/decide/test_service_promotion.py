"""Which policy a service serves: candidates, the gate and the roll-out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from service_worlds import ServiceStory, checkpoint

from rl_api.service_status import PolicyVersion
from rl_operator.decide.promotion import EVALUATION, ROLL_OUT
from rl_operator.model.service import Evaluation, VersionFigures, gate_text


def test_nothing_is_served_before_there_is_a_checkpoint() -> None:
    story = ServiceStory()
    story.looks(3)
    assert [one["kind"] for one in story.decisions[0].create] == [
        "Secret",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "RayService",
    ]
    assert story.told == ""
    assert story.condition("SourceFound")[1] == "NoCheckpoint"
    assert story.condition("Serving")[:2] == ("False", "Starting")
    assert story.status.phase == "Starting"


def test_the_first_checkpoint_is_measured_and_then_served() -> None:
    story = ServiceStory()
    story.looks(2)
    story.checkpoints = [checkpoint(20), checkpoint(10)]
    decision = story.look()
    assert story.status.candidate is not None
    assert (story.status.candidate.step, story.status.candidate.state) == (20, "Evaluating")
    assert decision.wish is not None
    assert decision.wish.path == "evaluate"
    assert decision.wish.body["serving"] is None
    assert set(decision.wish.body["gate"]) == {"heldOut", "latency", "agreement"}
    assert story.told == ""
    story.evaluations[checkpoint(20).digest] = Evaluation("running", "prompt 3 of 128")
    assert story.look().wish is None
    assert story.condition("Promoting")[2].endswith("prompt 3 of 128")
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "held-out score 0.5")
    story.looks(3)
    assert story.told == checkpoint(20).version
    assert story.status.serving is not None
    assert story.status.serving.version == checkpoint(20).version
    assert story.status.candidate is None  # there is nothing to compare it with
    assert [one.result for one in story.status.promotions] == ["promoted"]
    assert story.condition("Serving")[0] == "True"
    assert story.status.phase == "Serving"
    assert [one.percent for one in story.status.traffic] == [100]


def test_better_ones_follow_and_older_ones_do_not() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "10s"}}})
    story.served(20)
    story.looks(2)
    assert story.status.candidate is None  # step 10 would be a step back
    story.served(30)
    story.served(40)
    assert [one.step for one in story.status.promotions] == [20, 30, 40]
    assert story.reasons.count("Promoted") == 3


def test_what_fails_the_gate_is_never_tried_again() -> None:
    story = ServiceStory({"promotion": {"rollback": {"window": "0s"}}})
    story.served(20)
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("failed", "probe: 0.10, allowed: at least 0.85")
    story.looks(4)
    assert story.told == checkpoint(20).version
    assert story.status.refused == [checkpoint(30).digest]
    assert story.condition("Promoting")[:2] == ("False", "Refused")
    assert "0.10, allowed: at least 0.85" in story.condition("Promoting")[2]
    assert story.reasons.count("Refused") == 1
    del story.evaluations[checkpoint(30).digest]  # the control has begun anew, and has forgotten
    story.looks(4)
    assert story.reasons.count("Refused") == 1
    story.served(40)


@pytest.mark.parametrize("state", ["error", "failed"])
def test_what_cannot_be_measured_does_not_pass(state: str) -> None:
    story = ServiceStory()
    story.looks(2)
    story.checkpoints = [checkpoint(20)]
    story.evaluations[checkpoint(20).digest] = Evaluation(state, "")
    story.looks(3)
    assert story.status.serving is None
    assert story.status.promotions[-1].result == "refused"
    assert story.status.promotions[-1].message


def test_what_could_not_be_measured_is_measured_again() -> None:
    story = ServiceStory()
    story.looks(2)
    story.checkpoints = [checkpoint(20)]
    story.evaluations[checkpoint(20).digest] = Evaluation(
        "error", "the bucket does not answer", retryable=True
    )
    decision = story.look()
    assert decision.wish is not None
    assert decision.wish.path == "evaluate"
    story.looks(3)
    assert story.status.serving is None
    assert story.status.refused == []
    assert story.condition("Promoting")[1:] == (
        "Evaluating",
        f"{checkpoint(20).version}: it could not be measured yet, and is tried again: the bucket does not answer",
    )
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "good")
    story.looks(3)
    assert story.told == checkpoint(20).version


def test_what_takes_too_long_is_tried_again_and_listed_once() -> None:
    story = ServiceStory()
    story.looks(2)
    story.checkpoints = [checkpoint(20)]
    for why in ("", "", "no space is left"):
        story.look()
        if why:
            story.evaluations[checkpoint(20).digest] = Evaluation("error", why, retryable=True)
        story.look(EVALUATION.total_seconds() + 1)
        assert [one.result for one in story.status.promotions] == ["refused"]
        assert story.status.refused == []
    assert story.status.promotions[-1].message == "it was not measured within 30 minutes: no space is left"
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "good")
    story.looks(3)
    assert story.told == checkpoint(20).version


def test_what_cannot_be_measured_makes_room_for_a_newer_one() -> None:
    story = ServiceStory()
    story.served(20)
    story.looks(100)
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("error", "there is no such folder", retryable=True)
    story.looks(3)
    assert story.status.candidate is not None
    assert story.status.candidate.step == 30
    story.served(50)
    assert story.reasons.count("NotMeasured") == 1


def test_what_cannot_be_measured_and_is_gone_is_none_any_more() -> None:
    story = ServiceStory()
    story.served(20)
    story.looks(100)
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("error", "there is no such folder", retryable=True)
    story.looks(2)
    del story.checkpoints[0]
    story.look()
    assert story.status.candidate is None
    assert story.status.refused == []


def test_a_measurement_has_a_deadline() -> None:
    story = ServiceStory()
    story.looks(2)
    story.checkpoints = [checkpoint(20)]
    story.look()
    story.look(EVALUATION.total_seconds() + 1)
    assert story.status.promotions[-1].message == "it was not measured within 30 minutes"


def test_a_gate_of_nothing_lets_everything_through() -> None:
    story = ServiceStory({"promotion": {"gate": {}}})
    story.looks(2)
    story.checkpoints = [checkpoint(20)]
    story.looks(3)
    assert story.told == checkpoint(20).version
    assert not any(decision.wish for decision in story.decisions)


def test_a_copy_that_cannot_load_it_takes_it_back() -> None:
    story = ServiceStory()
    story.served(20)
    story.obeys, story.error = False, "model.safetensors does not match its checksum"
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("passed", "good")
    story.looks(8)
    assert story.told == checkpoint(20).version
    assert story.status.serving is not None
    assert story.status.serving.step == 20
    assert story.status.promotions[-1].result == "refused"
    assert "does not match its checksum" in story.status.promotions[-1].message
    assert story.status.refused == [checkpoint(30).digest]


def test_a_roll_out_has_a_deadline_which_says_nothing_of_the_policy() -> None:
    story = ServiceStory()
    story.served(20)
    story.obeys, story.error, story.retryable = False, "the bucket does not answer", True
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("passed", "good")
    story.looks(3)
    for _ in range(3):
        story.look(ROLL_OUT.total_seconds() + 1)
        assert story.told == checkpoint(20).version
        assert story.status.refused == []
        story.looks(2)
        why = "copies did not load it within 15 minutes: the bucket does not answer"
        assert story.status.promotions[-1].message == why
    story.obeys = True
    story.looks(2)
    assert story.told == checkpoint(30).version


def test_the_first_policy_waits_for_copies_as_long_as_it_takes() -> None:
    story = ServiceStory()
    story.looks(2)
    story.obeys = False
    story.checkpoints = [checkpoint(20)]
    story.evaluations[checkpoint(20).digest] = Evaluation("passed", "good")
    story.figures[checkpoint(20).version] = VersionFigures(deaths=5)  # of its nodes, it may be
    story.looks(20, ROLL_OUT.total_seconds())
    assert story.told == checkpoint(20).version
    assert story.status.promotions == []


def test_a_policy_that_fails_at_some_copies_is_not_rolled_out_to_all() -> None:
    story = ServiceStory({"promotion": {"rollback": {"minRequests": 10}}})
    story.served(20)
    story.missing = True
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("passed", "good")
    story.looks(3)
    assert story.status.candidate is not None
    assert story.status.candidate.state == "RollingOut"
    story.figures[checkpoint(30).version] = VersionFigures(requests=100, errors=90)
    story.look()
    assert story.told == checkpoint(20).version
    assert story.status.refused == [checkpoint(30).digest]


def test_copies_that_die_loading_it_are_enough() -> None:
    story = ServiceStory()
    story.served(20)
    story.obeys = False
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("passed", "good")
    story.figures[checkpoint(30).version] = VersionFigures(deaths=3)
    story.looks(6)
    assert story.told == checkpoint(20).version
    assert story.status.refused == [checkpoint(30).digest]


def test_a_copy_that_cannot_reach_a_policy_says_nothing_of_it() -> None:
    story = ServiceStory()
    story.served(20)
    story.obeys, story.error, story.retryable = False, "the head does not answer", True
    story.checkpoints.insert(0, checkpoint(30))
    story.evaluations[checkpoint(30).digest] = Evaluation("passed", "good")
    story.looks(20)
    assert story.told == checkpoint(30).version
    assert story.status.refused == []


@pytest.mark.parametrize(
    ("gate", "serving", "counts"),
    [({"agreement": {}}, 20, True), ({"agreement": {}}, 10, False), ({"latency": {}}, 20, False)],
)
def test_an_evaluation_of_something_else_does_not_count(gate: Any, serving: int, counts: bool) -> None:
    story = ServiceStory({"promotion": {"gate": {"agreement": {"maxDifference": 0.1}}}})
    story.served(20)
    story.looks(100)
    story.checkpoints.insert(0, checkpoint(30))
    asked = {"agreement": {"maxDifference": 0.1}} if gate == {"agreement": {}} else gate
    story.evaluations[checkpoint(30).digest] = Evaluation(
        "passed", "good", checkpoint(serving).digest, gate_text(asked)
    )
    decision = story.look()
    assert (decision.wish is None) == counts
    story.looks(2)
    assert (story.told == checkpoint(30).version) == counts


def test_another_cluster_has_nothing_to_say() -> None:
    story = ServiceStory()
    story.served(20)
    assert story.world.ray is not None
    story.world = replace(story.world, ray=replace(story.world.ray, active="another"))
    story.checkpoints.insert(0, checkpoint(30))
    story.looks(2)
    assert story.status.candidate is None


def test_a_fixed_policy_is_promoted_once() -> None:
    story = ServiceStory({"from": {"checkpoint": "s3://policies/chat"}}, followed=None)
    story.looks(2)
    fixed = PolicyVersion(version="policy-00000000", step=0, digest="0" * 64, source="s3://policies/chat")
    story.checkpoints = [fixed]
    story.look()
    assert story.last.wish is not None
    assert set(story.last.wish.body["gate"]) == {"latency", "agreement"}  # no run, no held-out prompts
    story.evaluations[fixed.digest] = Evaluation("passed", "good")
    story.looks(4)
    assert story.told == fixed.version
    assert story.condition("SourceFound")[1:] == ("Fixed", "s3://policies/chat is the policy to serve")


def test_a_fixed_policy_that_cannot_be_read_is_said() -> None:
    story = ServiceStory({"from": {"checkpoint": "org/none"}}, followed=None)
    story.looks(2)
    story.problem = "there is no such model"
    story.look()
    assert story.condition("SourceFound") == (
        "False",
        "NoCheckpoint",
        "org/none cannot be read: there is no such model",
    )


def test_a_hub_s_model_that_has_moved_on_is_a_candidate() -> None:
    story = ServiceStory({"from": {"checkpoint": "org/chat"}}, followed=None)
    story.looks(2)
    for number in (1, 2):
        moved = PolicyVersion(version=f"policy-{number}", step=0, digest=f"{number:064x}", source="org/chat")
        story.checkpoints = [moved]
        story.evaluations[moved.digest] = Evaluation("passed", "good")
        story.looks(5)
        assert story.told == moved.version
