"""Processes that compute at once make each other slower: costs and runs in virtual time, by hand."""

from __future__ import annotations

import pytest

from rl_api.planner.cost import crowded, learn_seconds, step_learn_seconds
from rl_api.planner.placement import Placement
from rl_api.planner.plan import predict
from rl_api.planner.profile import DecodeProfile, DevicesProfile, LearnerProfile, RunProfile
from rl_api.planner.simulator import simulate

PROFILE = RunProfile(
    group_size=2,
    prompts_per_step=4,
    decode=DecodeProfile(base=1.0, slots=64, contention=0.125),
    lengths=(10,),
    learner=LearnerProfile(alpha=1.0, beta=0.1, contention=0.25),
    publish_seconds=2.0,
)
"""Answers of 10 tokens in 10 s, however many; 80 tokens learned in 1 + 8 s by one rank, 1 + 4 by two: alone."""


def test_work_takes_longer_by_a_share_for_each_other_process() -> None:
    assert learn_seconds(PROFILE, 80, 1) == 9
    assert learn_seconds(PROFILE, 80, 2) == 1 + 4 * 1.25
    assert learn_seconds(PROFILE, 80, 4) == 1 + 2 * 1.75
    assert learn_seconds(PROFILE, 80, 1, samplers=2) == pytest.approx(1 + 8 * 1.5)
    assert step_learn_seconds(PROFILE, 2) == 6
    alone = PROFILE.model_copy(update={"learner": LearnerProfile(alpha=1.0, beta=0.1)})
    assert learn_seconds(alone, 80, 2, samplers=7) == 5, "where it was not measured nothing is made up"
    fixed = PROFILE.model_copy(
        update={"learner": LearnerProfile(alpha=1.0, per_pass=2.0, beta=0.1, contention=0.25)}
    )
    assert learn_seconds(fixed, 80, 2) == 1 + (2 + 4) * 1.25
    assert learn_seconds(fixed, 0, 2) == 1 + 2 * 1.25


def test_what_was_measured_beside_others_is_faster_alone() -> None:
    crowd = PROFILE.model_copy(update={"devices": DevicesProfile(learner=2, learner_company=1.0)})
    assert learn_seconds(crowd, 80, 2) == 5, "as measured"
    assert learn_seconds(crowd, 80, 1) == pytest.approx(1 + 8 / 1.25)
    assert crowded(0.25, -1.0, 0.0) == 1.0


def test_roles_in_turn_are_slower_by_those_of_their_own_kind() -> None:
    assert simulate(PROFILE, Placement(1, 1, 0, 4)).step_seconds == pytest.approx(10 + 9 + 2)
    assert simulate(PROFILE, Placement(2, 2, 2, 4)).step_seconds == pytest.approx(11.25 + 6 + 2)


def test_a_sampler_is_slower_while_learners_compute_and_no_longer() -> None:
    """Two sequences at once, so that groups come one after the other; learners take each at once, for 1 + 2 s."""
    half = DecodeProfile(base=1.0, slots=2, contention=0.5)
    profile = PROFILE.model_copy(update={"decode": half, "learner": LearnerProfile(alpha=1.0, beta=0.1)})
    run = simulate(profile, Placement(1, 1, 0, 1), steps=1)
    begun = [span.start for span in run.spans if span.what == "learn"]
    # In 3 s beside a learner a sampler makes 2 tokens.
    assert begun == pytest.approx([10, 21, 32, 43])
    assert run.published == pytest.approx([48])


def test_learners_are_slower_beside_samplers_that_go_on() -> None:
    """The same the other way round: of four parts the last one alone is learned while nobody decodes."""
    profile = PROFILE.model_copy(update={"decode": DecodeProfile(base=1.0, slots=2)})
    run = simulate(profile, Placement(1, 1, 0, 1), steps=1)
    lengths = [span.end - span.start for span in run.spans if span.what == "learn"]
    assert lengths == pytest.approx([3.5, 3.5, 3.5, 3.0])


def test_learners_are_faster_again_as_soon_as_nobody_decodes() -> None:
    """Two groups, the first of which is learned from 10 s on, the second decoded until 20 s: of 20 s of passes, which begin
    after one second, 9 / 1.25 are done by then."""
    profile = PROFILE.model_copy(
        update={
            "prompts_per_step": 2,
            "decode": DecodeProfile(base=1.0, slots=2),
            "learner": LearnerProfile(alpha=1.0, beta=1.0, contention=0.25),
        }
    )
    run = simulate(profile, Placement(1, 1, 0, 1), steps=1)
    learned = [(span.start, span.end) for span in run.spans if span.what == "learn"]
    assert learned == [pytest.approx((10, 32.8)), pytest.approx((32.8, 53.8))]


def test_prediction_and_simulation_have_it() -> None:
    assert predict(PROFILE, Placement(2, 2, 2, 4)).step_seconds == pytest.approx(11.25 + 6 + 2)
