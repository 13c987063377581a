"""Runs in virtual time: against sums by hand, with every mode, with parts, hand-over, staleness and failures."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist

import pytest

from rl_api.planner.candidates import candidates
from rl_api.planner.placement import Placement
from rl_api.planner.plan import predict
from rl_api.planner.profile import (
    DecodeProfile,
    DevicesProfile,
    LearnerProfile,
    RunProfile,
    Switches,
    SwitchProfile,
)
from rl_api.planner.proportion import in_proportion
from rl_api.planner.rollout import Rollout, decode, spread
from rl_api.planner.room import Room
from rl_api.planner.simulated import Outage
from rl_api.planner.simulator import simulate

PROFILE = RunProfile(
    group_size=2,
    prompts_per_step=4,
    decode=DecodeProfile(base=1.0, slots=64),
    lengths=(10,),
    learner=LearnerProfile(alpha=1.0, beta=0.1),
    publish_seconds=2.0,
)
"""Answers of 10 tokens in 10 s, however many; 80 tokens learned in 1 + 8 s by one rank, 1 + 4 by two."""


def _with(**changes: object) -> RunProfile:
    return PROFILE.model_copy(update=changes)


def test_disaggregated_takes_its_parts_one_after_the_other() -> None:
    result = simulate(PROFILE, Placement(1, 1, 0, 4), steps=3)
    assert result.published == pytest.approx([21.0, 42.0, 63.0])
    assert result.trained == list(range(12))
    assert (result.step_seconds, result.generating, result.learning) == pytest.approx((21.0, 10.0, 9.0))


def test_overhead_is_a_part_of_each_step_like_publishing() -> None:
    profile = _with(overhead_seconds=0.5)
    assert simulate(profile, Placement(1, 1, 0, 4)).step_seconds == pytest.approx(21.5)
    assert simulate(profile, Placement(2, 2, 2, 4)).step_seconds == pytest.approx(10 + 5 + 2.5)


def test_collocated_has_all_devices_for_both_and_pays_for_each_change_of_hands() -> None:
    switch = Switches(
        learner=SwitchProfile(onload=0.5, offload=0.25), sampler=SwitchProfile(onload=0.125, offload=0.0625)
    )
    placement = Placement(2, 2, 2, 4, swap=True)
    assert simulate(_with(switch=switch), placement).step_seconds == pytest.approx(10 + 5 + 2 + 0.9375)
    rows = {span.row for span in simulate(PROFILE, placement).last_step()}
    assert rows == {"learner 0", "learner 1"}


def test_nobody_has_a_device_that_another_has() -> None:
    profile = _with(lengths=(3, 5, 9, 20), decode=DecodeProfile(base=1.0, per_active=0.1, slots=3))
    for placement in (
        Placement(2, 2, 2, 4),
        Placement(2, 2, 2, 1),
        Placement(2, 3, 2, 1),
        Placement(2, 2, 2, 2, interrupt=False),
        Placement(1, 2, 1, 2, 0.5),
    ):
        by_row: dict[str, list[tuple[float, float]]] = {}
        result = simulate(profile, placement)
        for span in result.spans:
            by_row.setdefault(span.row, []).append((span.start, span.end))
        for spans in by_row.values():
            spans.sort()
            for (_, end), (start, _) in itertools.pairwise(spans):
                assert start >= end - 1e-9, placement
        assert sorted(result.trained) == list(range(12)), placement


def test_parts_are_learned_while_others_are_sampled() -> None:
    """Two slots: a group every 10 s, so that all but the last part is learned meanwhile."""
    profile = _with(decode=DecodeProfile(base=1.0, slots=2))
    whole = simulate(profile, Placement(1, 1, 0, 4)).step_seconds
    parts = simulate(profile, Placement(1, 1, 0, 1)).step_seconds
    assert (whole, parts) == pytest.approx((40 + 9 + 2, 40 + 3 + 2))


def test_what_is_handed_over_goes_on_with_its_tokens() -> None:
    """A shared sampler and one that has its own device decode two groups each, 40 tokens in all of an answer. After the
    first part (group 0, then 1) the shared one leaves; what it has begun is finished at the other one at the same time, as
    decode steps cost the same however many are active."""
    profile = _with(
        lengths=(10, 40), decode=DecodeProfile(base=1.0, slots=64), learner=LearnerProfile(beta=0.01)
    )
    alone = simulate(profile, Placement(1, 2, 0, 4), steps=1).published[0]
    hybrid = simulate(profile, Placement(1, 2, 1, 2, 0.25), steps=1)
    assert hybrid.published[0] <= alone + 1e-9
    assert sorted(hybrid.trained) == [0, 1, 2, 3]
    handed = [span for span in hybrid.spans if (span.row, span.what) == ("learner 0", "sample")]
    assert len(handed) == 1


def test_dialogues_wait_for_learners_where_they_were_begun() -> None:
    """In a hybrid whose learners work in parts: the shared sampler comes back to its own after each."""
    profile = _with(decode=DecodeProfile(base=1.0, slots=2))
    moved = simulate(profile, Placement(1, 2, 1, 1), steps=1)
    stay = simulate(profile, Placement(1, 2, 1, 1, movable=False), steps=1)
    # Two groups each, 10 s a group. Learners have the first part at 10 s, for 1 + 2 s.
    begun = [
        [span.start for span in run.spans if (span.row, span.what) == ("learner 0", "sample")]
        for run in (moved, stay)
    ]
    assert begun[0] == [0.0]
    assert begun[1][0] == 0.0
    assert len(begun[1]) == 2
    assert sorted(stay.trained) == [0, 1, 2, 3]


def test_staleness_lets_samplers_go_on() -> None:
    result = simulate(_with(max_staleness=1), Placement(1, 1, 0, 4), steps=8)
    assert result.step_seconds == pytest.approx(11.0, rel=0.1)  # the learner and publishing alone


def test_where_samplers_run_ahead_each_gets_groups_in_its_turn() -> None:
    """A sampler that would take all that there is at once comes last the next time."""
    profile = _with(max_staleness=1, decode=DecodeProfile(base=1.0, per_active=0.1, slots=64))
    run = simulate(profile, Placement(1, 2, 0, 4), steps=9)
    begun = [span for span in run.spans if span.what == "sample" and span.start > run.published[2]]
    assert {span.row for span in begun} == {"sampler 0", "sampler 1"}


def test_a_sampler_that_takes_weights_over_decodes_nothing_meanwhile() -> None:
    """In step it is a part of publishing; one that runs ahead, and has no time to spare, is later by as much."""
    publishing = {"publish_seconds": 2.0, "load_seconds": 1.5}
    for placement in (Placement(1, 1, 0, 4), Placement(2, 2, 2, 4), Placement(1, 2, 1, 4)):
        whole = simulate(PROFILE, placement).step_seconds
        assert simulate(_with(**publishing), placement).step_seconds == pytest.approx(whole)
    busy = {
        "max_staleness": 1,
        "learner": LearnerProfile(beta=0.001),
        "decode": DecodeProfile(base=1.0, slots=8),
    }
    seconds = [
        predict(_with(**busy, publish_seconds=2.0, load_seconds=load), Placement(1, 1, 0, 4)).step_seconds
        for load in (0.0, 1.5)
    ]
    assert seconds == pytest.approx([10.0, 11.5])


def test_learners_wait_until_a_sampler_has_scored_what_has_ended() -> None:
    """Groups of two steps end at once, at 10 s, and take 2 s each to be scored: 4 of them are there at 18, all at 26."""
    run = simulate(_with(max_staleness=1, score_seconds=2.0), Placement(1, 1, 1, 4), steps=1)
    assert min(span.start for span in run.spans if span.what == "learn") == pytest.approx(26.0)


def test_a_sampler_that_is_lost_costs_time_and_no_prompt() -> None:
    placement = Placement(1, 2, 0, 4)
    whole = simulate(PROFILE, placement, steps=2)
    lost = simulate(PROFILE, placement, steps=2, outages=[Outage(0, 5.0, 30.0)])
    assert lost.trained == whole.trained
    assert lost.published[0] == pytest.approx(whole.published[0] + 5.0)
    shared = simulate(PROFILE, Placement(2, 2, 2, 4), steps=2, outages=[Outage(0, 5.0, 30.0)])
    assert sorted(shared.trained) == sorted(whole.trained)


def test_the_same_arguments_give_the_same_run() -> None:
    profile = _with(lengths=tuple(range(1, 60)))
    placement = Placement(1, 3, 1, 1, 0.5)
    assert simulate(profile, placement).published == simulate(profile, placement).published


def test_a_large_run_is_simulated_in_proportion() -> None:
    profile = RunProfile(
        group_size=8,
        prompts_per_step=512,
        decode=DecodeProfile(base=0.01, per_active=1e-4, slots=128),
        lengths=tuple(range(100, 1100, 7)),
        learner=LearnerProfile(alpha=0.1, beta=1e-5),
        devices=DevicesProfile(learner=16),
    )
    placement = Placement(16, 16, 0, 64)
    small, placed, fewer = in_proportion(profile, placement)
    assert fewer > 1
    assert (placed.samplers * fewer, small.prompts_per_step * fewer) == (16, 512)
    whole = simulate(profile, placement, steps=2).step_seconds
    assert simulate(small, placed, steps=2, fewer=fewer).step_seconds == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize(
    "placement",
    [Placement(64, 64, 64, 512), Placement(24, 40, 0, 64), Placement(32, 64, 32, 64, 0.125)],
    ids=["collocated", "disaggregated", "hybrid"],
)
def test_a_heavy_tail_is_as_long_however_much_smaller_the_run_is_that_is_simulated(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much smaller follows from what divides a placement's numbers, so that else some of them would look faster."""
    normal = NormalDist()
    profile = RunProfile(
        group_size=8,
        prompts_per_step=512,
        decode=DecodeProfile(base=0.01, per_active=8e-5, slots=256),
        lengths=tuple(
            round(2000 * math.exp(0.7 * normal.inv_cdf((index + 0.5) / 4096))) for index in range(4096)
        ),
        learner=LearnerProfile(beta=1e-6),
    )
    found = {}
    for most in (2048, 8192):
        monkeypatch.setattr("rl_api.planner.proportion.MOST_ANSWERS", most)
        fewer = in_proportion(profile, placement)[2]
        found[fewer] = predict(profile, placement, in_order=False).step_seconds
    assert sorted(found) == [2, 8]
    assert found[8] == pytest.approx(found[2], rel=0.02)


def test_decode_steps_by_hand() -> None:
    model = DecodeProfile(base=1.0, per_active=0.5, per_cached_token=0.01, slots=2)
    # Two sequences, 4 tokens cached each: steps 1 and 2 have 8 and 10 tokens cached, then one with 6 goes on alone.
    found = decode([2, 3], model, [4.0, 4.0], None, 2)
    assert found.ends == pytest.approx([2 * 2.0 + 0.18, 2 * 2.0 + 0.18 + 1.5 + 0.06])
    # One slot, and prompts that are read at 2 tokens per second.
    found = decode([2, 3], model, [4.0, 4.0], 2.0, 1)
    assert found.starts == pytest.approx([2.0, 2.0 + 3.0 + 0.09 + 2.0])


def test_lengths_that_stand_for_all_keep_their_mean_and_the_longest() -> None:
    lengths = list(range(1, 1001))
    drawn = spread(lengths, 50)
    assert len(drawn) == 50
    assert max(drawn) == 1000
    assert sum(drawn) / 50 == pytest.approx(500.5, rel=0.02)
    assert drawn != sorted(drawn)


def test_rollout_ends_with_the_longest_and_more_samplers_help_less_and_less() -> None:
    profile = _with(
        prompts_per_step=64,
        lengths=(10, 10, 10, 100),
        decode=DecodeProfile(base=0.01, per_active=0.01, slots=256),
    )
    curves = [Rollout(profile).curve(samplers) for samplers in (1, 2, 4, 8)]
    seconds = [curve.seconds for curve in curves]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] / seconds[1] > seconds[2] / seconds[3]
    assert seconds[-1] >= 100 * 0.02
    assert curves[0].until(1.0) == seconds[0]


def test_what_is_left_is_decoded_by_fewer() -> None:
    profile = _with(prompts_per_step=64, lengths=tuple(range(10, 200)), max_staleness=1)
    rollout = Rollout(profile)
    moment, curve = rollout.handed_over(8, 2, 0.5)
    assert rollout.curve(8).until(0.5) == moment < curve.seconds
    assert rollout.curve(8).seconds <= curve.seconds + 1e-9
    assert rollout.handed_over(8, 8, 0.5)[1] == rollout.curve(8)


def test_who_drains_comes_to_the_end_of_every_step() -> None:
    """Learners leave devices after each part where nothing is handed over: else those who drained could not go on."""
    for seed in range(150):
        rng = random.Random(seed)
        groups, shared = rng.choice((8, 16)), rng.randint(1, 3)
        profile = _with(
            prompts_per_step=groups,
            max_staleness=rng.choice((0, 0, 1)),
            lengths=tuple(rng.randint(1, 40) for _ in range(30)),
            decode=DecodeProfile(base=1.0, per_active=0.1, slots=rng.choice((1, 2, 8))),
        )
        part, at = rng.randint(1, groups), rng.choice((None, 0.3, 1.0))
        placement = Placement(3, shared + rng.randint(0, 2), shared, part, at, interrupt=False)
        result = simulate(profile, placement, steps=4)
        assert len(set(result.trained)) == 4 * groups, (seed, placement)


@pytest.mark.parametrize("staleness", [1, 2])
def test_groups_that_staleness_left_ready_count_for_the_hand_over(staleness: int) -> None:
    """Learners take a part when it is there, which hands over: a later moment than that changes nothing."""
    profile = _with(
        prompts_per_step=8,
        max_staleness=staleness,
        lengths=(5, 10, 20, 40),
        decode=DecodeProfile(base=1.0, slots=4),
    )
    moments = (None, 0.25, 0.5, 0.9, 1.0)
    seconds = [simulate(profile, Placement(1, 3, 1, 2, at), steps=12).step_seconds for at in moments]
    assert seconds == pytest.approx([seconds[0]] * 5, rel=0.05)
    earlier = simulate(profile, Placement(1, 3, 1, 8, 0.5), steps=6)
    assert earlier.published != simulate(profile, Placement(1, 3, 1, 8), steps=6).published
    found = candidates(profile, Room(3), Rollout(profile))
    assert {one.hand_over_at for one in found if one.mode == "hybrid" and one.part_groups == 2} <= {
        None,
        0.25,
    }
    assert any(one.hand_over_at == 0.9 for one in found)


def test_a_sampler_that_scores_does_not_decode() -> None:
    """Two slots: a group every 10 s, each scored for 1 s, in which nothing else is decoded."""
    profile = _with(decode=DecodeProfile(base=1.0, slots=2), score_seconds=1.0)
    assert simulate(profile, Placement(1, 1, 0, 4)).step_seconds == pytest.approx(44 + 9 + 2)
    assert Rollout(profile).curve(1).seconds == pytest.approx(44)
    assert Rollout(profile).steady(1) == pytest.approx(44)


def test_tokens_are_read_again_after_a_swap_only_where_the_engine_drops_them() -> None:
    switch = Switches(sampler=SwitchProfile(onload=1.0))
    moved = _with(
        switch=switch,
        prefill_tokens_per_second=2.0,
        lengths=(10, 40),
        decode=DecodeProfile(base=1.0, slots=2),
        max_staleness=1,
    )
    placement = Placement(1, 1, 1, 1, swap=True)
    kept = simulate(moved, placement, steps=4)
    dropped = simulate(moved.model_copy(update={"reads_again": True}), placement, steps=4)
    turns = [span.end - span.start for span in kept.spans if span.what == "switch" and span.end > span.start]
    assert turns == pytest.approx([1.0] * len(turns))
    assert dropped.published[-1] > kept.published[-1]
