"""Plans: which placement, why, and what is said of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_api.planner.candidates import MOST_ALIKE, best_estimates, candidates, part_sizes
from rl_api.planner.cost import (
    COPIED_BYTES_PER_SECOND,
    NEXT_PART_SECONDS,
    WAKE_SECONDS,
    Turn,
    learn_seconds,
    learner_bytes,
    sampler_bytes,
    shared_bytes,
    step_learn_seconds,
    turn,
    update_seconds,
)
from rl_api.planner.placement import Placement
from rl_api.planner.plan import Tried, make_plan, predict, runner_up, scaled_profile, settling, simplest
from rl_api.planner.profile import (
    DecodeProfile,
    DevicesProfile,
    LearnerProfile,
    Memories,
    RoleMemory,
    RunProfile,
    Switches,
    SwitchProfile,
)
from rl_api.planner.rollout import Rollout
from rl_api.planner.room import MODES, Room, placement_of, room_of
from rl_api.planner.simulated import Simulated
from rl_api.run import RunSpec

RNG = random.Random(0)
PROFILE = RunProfile(
    steps=30,
    group_size=4,
    prompts_per_step=16,
    decode=DecodeProfile(base=0.01, per_active=0.002, slots=16),
    lengths=tuple(min(64, max(2, int(RNG.lognormvariate(3, 0.8)))) for _ in range(300)),
    limit=64,
    learner=LearnerProfile(alpha=0.05, beta=0.001),
    publish_seconds=0.05,
)


def _spec(others: dict[str, Any] | None = None, **placement: object) -> RunSpec:
    document = {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "learner": {"replicas": 2},
        "sampler": {"replicas": 3},
        "placement": placement,
        **(others or {}),
    }
    return RunSpec.model_validate(document)


def test_the_plan_is_the_fastest_of_what_was_simulated_and_says_why() -> None:
    plan = make_plan(PROFILE, Room(2))
    assert plan.predicted_step_seconds <= 1.01 * min(one.predicted_step_seconds for one in plan.alternatives)
    assert plan.placement.devices() <= 2
    assert plan.reason.startswith(f"{plan.mode}: learners {plan.learners}, samplers {plan.samplers}")
    assert "; next " in plan.reason
    assert "that is what limits" in plan.limits or "the longest answer" in plan.limits
    assert len(plan.sensitivity) == 2
    modes = {plan.mode, *(one.mode for one in plan.alternatives)}
    assert modes == {"disaggregated", "collocated", "hybrid"}
    assert predict(PROFILE, plan.placement).step_seconds == plan.predicted_step_seconds


def test_where_samplers_run_ahead_steps_at_the_beginning_count_for_nothing() -> None:
    """One step may end right after another, as groups of several are under way: means are over as many, twice."""
    assert [settling(staleness) for staleness in (0, 1, 2)] == [(1, 3), (3, 7), (4, 10)]
    published = [30.0, 31.0, 41.0, 42.0, 52.0, 53.0, 63.0]
    assert replace(Simulated(published, [], [], 0.0, 0.0), settled=3).step_seconds == 5.5
    assert Simulated(published[:2], [], [], 0.0, 0.0, settled=3).step_seconds == 1.0
    assert Simulated([30.0], [], [], 0.0, 0.0, settled=3).step_seconds == 30.0
    ahead = PROFILE.model_copy(update={"max_staleness": 1})
    found = predict(ahead, Placement(1, 1, 0, 16))
    assert (found.settled, len(found.published)) == (3, 7)


def test_of_placements_as_fast_the_one_in_which_fewer_share_is_taken() -> None:
    """Seconds within 1 %: neither the fastest nor the order of modes decides, but how many samplers share."""

    def tried(seconds: float, shared: int, part: int = 16, samplers: int = 4) -> Tried:
        return Tried(
            Placement(4, samplers, shared, part), Simulated([seconds, 2 * seconds], [], [], 0.0, 0.0)
        )

    every = [tried(1.0, 4), tried(1.004, 2, 8), tried(1.005, 2), tried(1.02, 0)]
    assert simplest(every) is every[2]
    assert simplest([*every, tried(1.009, 0)]).placement.shared == 0


def test_where_nothing_is_lost_by_sharing_all_devices_do_both() -> None:
    """Work of both in proportion to devices, and no switch costs anything: each device always has something to do."""
    assert make_plan(PROFILE, Room(2), sensitivity=False).mode == "collocated"


def test_where_changing_hands_is_slow_each_role_has_its_own() -> None:
    slow = SwitchProfile(onload=5.0, offload=5.0, wake=5.0)
    profile = PROFILE.model_copy(update={"switch": Switches(learner=slow, sampler=slow)})
    assert make_plan(profile, Room(2), sensitivity=False).mode == "disaggregated"


def test_memory_decides_what_stays_and_what_fits() -> None:
    memory = Memories(
        learner=RoleMemory(weights=30.0, moments=30.0, divided=True),
        sampler=RoleMemory(weights=50.0, kept=5.0),
    )

    def on(size: float) -> RunProfile:
        devices = DevicesProfile(learner=2, sampler=1, memory=size)
        return PROFILE.model_copy(update={"memory": memory, "devices": devices})

    assert learner_bytes(on(200.0), 2) == 60.0
    assert learner_bytes(on(200.0), 4) == 30.0
    assert sampler_bytes(on(200.0)) == 55.0
    assert shared_bytes(on(200.0), 2, swap=False) == 115.0
    assert shared_bytes(on(200.0), 2, swap=True) == 65.0
    assert make_plan(on(200.0), Room(2, modes=("collocated",)), sensitivity=False).residency == "keep"
    assert make_plan(on(80.0), Room(2, modes=("collocated",)), sensitivity=False).residency == "swap"
    with pytest.raises(
        InvalidConfig, match=r"found 2 devices of 40 bytes, on which no placement of mode collocated fits"
    ):
        make_plan(on(40.0), Room(2, modes=("collocated",)))


def test_what_fills_a_device_leaves_no_room_beside_it() -> None:
    memory = Memories(
        learner=RoleMemory(weights=30.0, activations_per_token=1.0, pass_tokens=40, kept=2.0),
        sampler=RoleMemory(weights=10.0, least=90.0, kept=2.0),
    )
    devices = DevicesProfile(learner=2, sampler=1, memory=100.0)
    profile = PROFILE.model_copy(update={"memory": memory, "devices": devices, "lengths": (30,)})
    # Of passes of 40 tokens; of the step's tokens with more ranks than that many are there for; of the longest answer.
    tokens = int(profile.tokens)
    assert learner_bytes(profile, 2) == 72.0
    assert learner_bytes(profile, tokens // 35) == pytest.approx(32.0 + tokens / (tokens // 35))
    assert learner_bytes(profile, 2 * tokens) == 62.0
    assert (sampler_bytes(profile), shared_bytes(profile, 2, swap=True)) == (90.0, 92.0)
    room = Room(2, modes=("collocated",), now=Placement(2, 2, 2, PROFILE.prompts_per_step))
    assert make_plan(profile, room, sensitivity=False).residency == "swap"
    # Sampler of which nothing is known: as trainers decide it.
    nothing = profile.model_copy(update={"memory": Memories(learner=memory.learner)})
    assert make_plan(nothing, room, sensitivity=False).residency == "swap"


@pytest.mark.parametrize(("beta", "stays"), [(0.0003, 0), (0.0005, 1), (0.001, 2)])
def test_a_profile_that_is_wrong_changes_nothing_or_it_is_said_what_is_lost(beta: float, stays: int) -> None:
    """Held against a simulation of every placement, were rollout 1 / 0.71 of what was measured, or training 1 / 1.48."""
    profile, room = PROFILE.model_copy(update={"learner": LearnerProfile(alpha=0.05, beta=beta)}), Room(2)
    plan = make_plan(profile, room)
    for said, wrong, other in zip(
        plan.sensitivity,
        ("rollout times are 29 % too low", "training times are 48 % too high"),
        (scaled_profile(profile, rollout=1 / 0.71), scaled_profile(profile, training=1 / 1.48)),
        strict=True,
    ):
        every = {one: predict(other, one).step_seconds for one in candidates(other, room, Rollout(other))}
        best = min(every, key=lambda one: every[one])
        lost = predict(other, plan.placement).step_seconds / every[best] - 1
        expected = (
            f"the plan stays if {wrong}"
            if lost <= 0.01
            else f"if {wrong}, {best.words(16)} would be right, and this plan loses {lost:.1%}"
        )
        assert said == expected
    assert sum(said.startswith("the plan stays") for said in plan.sensitivity) == stays


def test_what_limits_is_the_group_with_the_longest_answer_where_more_samplers_would_not_help() -> None:
    """Four prompts of 20 tokens read in 8 s, 64 tokens in 1.15 s, and 3 s for the score."""
    profile = PROFILE.model_copy(
        update={
            "prompt_tokens": 20.0,
            "prefill_tokens_per_second": 10.0,
            "score_seconds": 3.0,
            "lengths": (64,),
        }
    )
    alone = profile.model_copy(update={"prompts_per_step": 2, "learner": LearnerProfile(beta=1e-6)})
    limits = make_plan(alone, Room(3, modes=("disaggregated",)), sensitivity=False).limits
    assert limits.startswith(
        "the group with the longest answer takes 12.2 s of 12.2 s on a sampler of its own"
    )
    many = make_plan(profile, Room(2), sensitivity=False).limits
    assert many.endswith(": that is what limits")


def test_times_of_a_profile_are_multiplied_where_they_are_wrong() -> None:
    learner = PROFILE.learner.model_copy(update={"per_pass": 0.25})
    fixed = scaled_profile(PROFILE.model_copy(update={"learner": learner}), 2.0, 0.5)
    other = scaled_profile(PROFILE, rollout=2.0, training=0.5)
    assert (fixed.learner.per_pass, other.learner.per_pass) == (0.125, None)
    assert other.decode.base == 0.02
    assert other.learner.beta == 0.0005
    assert Rollout(other).curve(2).seconds == pytest.approx(2 * Rollout(PROFILE).curve(2).seconds)


def test_costs_by_hand() -> None:
    profile = PROFILE.model_copy(
        update={
            "learner": LearnerProfile(
                alpha=1.0, beta=0.1, log_prob=0.05, value=0.05, all_reduce=3.0, optimizer=2.0
            ),
            "devices": DevicesProfile(learner=2),
            "switch": Switches(
                learner=SwitchProfile(onload=1.0, offload=2.0, wake=0.5),
                sampler=SwitchProfile(onload=3.0, offload=4.0, wake=0.25),
            ),
        }
    )
    assert learn_seconds(profile, 100.0, 4) == 1.0 + 0.2 * 25
    assert update_seconds(profile, 4) == pytest.approx(2.0 + 3.0 * 1.5)
    assert update_seconds(profile, 1) == 2.0  # which sends nothing
    alone = profile.model_copy(update={"devices": DevicesProfile(learner=1)})
    assert update_seconds(alone, 1) == 5.0
    assert update_seconds(alone, 4) == pytest.approx(5.0 + 0.05 * 1.5)  # as long as weights take to samplers
    assert update_seconds(alone.model_copy(update={"steps": 0}), 4) == 5.0  # a prior says what it means
    assert (turn(profile, swap=True).to_learner, turn(profile, swap=True).to_sampler) == (5.5, 5.25)
    assert (turn(profile, swap=False).to_learner, turn(profile, swap=False).to_sampler) == (0.5, 0.25)


def test_a_change_of_hands_that_was_never_made_is_not_free() -> None:
    tensors = Memories(learner=RoleMemory(weights=1e8, moments=3e8), sampler=RoleMemory(weights=1e8))
    profile = PROFILE.model_copy(update={"memory": tensors})
    assert turn(profile, swap=False) == Turn(WAKE_SECONDS, WAKE_SECONDS)
    moved = turn(profile, swap=True)
    assert (
        moved.to_learner
        == moved.to_sampler
        == pytest.approx((4e8 + 1e8) / COPIED_BYTES_PER_SECOND + WAKE_SECONDS)
    )
    learner = SwitchProfile(onload=0.1, offload=0.3)  # `rltrain profile` tries theirs: 2 GB/s
    tried = turn(profile.model_copy(update={"switch": Switches(learner=learner)}), swap=True)
    assert (tried.to_learner, tried.to_sampler) == pytest.approx((0.05 + 0.1 + 0.004, 0.3 + 0.05 + 0.004))
    both = Switches(learner=SwitchProfile(wake=0.5), sampler=SwitchProfile(wake=0.25))
    assert turn(profile.model_copy(update={"switch": both}), swap=False) == Turn(0.5, 0.25)
    assert turn(profile.model_copy(update={"steps": 0}), swap=True) == Turn(0.0, 0.0)


def test_a_part_more_is_not_free() -> None:
    whole, parts = (step_learn_seconds(PROFILE, 1, parts) for parts in (1, 4))
    assert parts - whole == pytest.approx(3 * (PROFILE.learner.alpha + NEXT_PART_SECONDS))
    alike = PROFILE.model_copy(update={"lengths": (8,), "max_staleness": 4})  # all groups of a step are there
    seconds = [predict(alike, Placement(1, 8, 0, part)).step_seconds for part in (16, 4)]
    assert seconds[1] - seconds[0] == pytest.approx(parts - whole)


def test_dialogues_stay_with_the_sampler_that_has_begun_them() -> None:
    hybrid = {"mode": "hybrid", "partGroups": 8}
    task = {"environment": "tool-use", "name": "calculator"}
    spec = _spec({"task": task}, **hybrid)
    assert spec.task.dialogues
    room = room_of(spec)
    assert not any(one.movable for one in candidates(PROFILE, room, Rollout(PROFILE)))
    assert room_of(_spec(**hybrid)).movable


def test_parts_are_a_whole_step_or_powers_of_two_of_it() -> None:
    assert part_sizes(16, Room(2)) == [16, 8, 4, 2, 1]
    assert part_sizes(16, Room(2, parts=False)) == [16]
    assert part_sizes(16, Room(2, part_groups=3)) == [3]


def test_candidates_keep_to_what_the_user_says() -> None:
    rollout = Rollout(PROFILE)
    for room in (
        Room(4, modes=("hybrid",), shared=1, learners=(2,), hand_over_at=0.5),
        Room(6, per_sampler=2),
        Room(4, modes=("disaggregated",), learners=(2,), samplers=(2,)),
    ):
        found = candidates(PROFILE, room, rollout)
        assert found
        for one in found:
            assert one.mode in room.modes
            assert one.devices(room.per_sampler) <= room.devices
            assert room.shared in (None, one.shared)
            assert not room.learners or one.learners in room.learners
            assert one.shared == 0 or room.per_sampler == 1


def test_few_samplers_share_as_well_as_many() -> None:
    found = candidates(PROFILE, Room(7), Rollout(PROFILE))
    by_learners = {
        learners: {one.shared for one in found if one.learners == learners and one.mode == "hybrid"}
        for learners in (1, 4, 6)
    }
    assert by_learners == {1: {1}, 4: {4, 2, 1}, 6: {6, 3, 1}}


def test_as_many_samplers_share_as_the_user_says_at_every_moment_and_in_every_part() -> None:
    """Also a number that no half of the learners is."""
    spec = _spec({"learner": {"replicas": 4}, "sampler": {"replicas": 5}}, sharedSamplers=3)
    room = room_of(spec)
    found = [one for one in candidates(PROFILE, room, Rollout(PROFILE)) if one.learners == 4]
    assert {(one.samplers, one.shared) for one in found} == {(5, 3)}
    assert {one.hand_over_at for one in found if one.part_groups == 16} == {None, 0.25, 0.5, 0.75, 0.9}
    assert {one.part_groups for one in found} == set(part_sizes(16, room))


def test_of_placements_that_differ_in_parts_alone_a_few_are_simulated() -> None:
    rollout = Rollout(PROFILE)
    found = best_estimates(PROFILE, candidates(PROFILE, Room(8), rollout), rollout, 20)
    alike = Counter((one.learners, one.samplers, one.shared) for one in found[:20])
    assert max(alike.values()) == MOST_ALIKE
    assert len(found) >= 20


def test_a_runs_own_placement_is_looked_at_and_auto_may_choose_another() -> None:
    auto = room_of(_spec())
    assert auto.devices == 5
    assert auto.now == Placement(2, 3, 0, 32)
    fixed = room_of(_spec(mode="hybrid", sharedSamplers=1, handOverAt=0.5))
    assert (fixed.devices, fixed.learners, fixed.samplers, fixed.shared) == (4, (2,), (3,), 1)
    assert placement_of(_spec(mode="hybrid", sharedSamplers=1, handOverAt=0.5)).hand_over_at == 0.5
    found = candidates(PROFILE, fixed, Rollout(PROFILE))
    assert {(one.learners, one.samplers, one.shared) for one in found} == {(2, 3, 1)}
    plan = make_plan(PROFILE.model_copy(update={"prompts_per_step": 32}), auto, sensitivity=False)
    assert auto.now in [one.placement for one in (plan, *plan.alternatives)]


@pytest.mark.parametrize(
    ("others", "modes"),
    [
        ({}, MODES),
        ({"weightSync": {"transport": "collective"}}, ("disaggregated",)),
        ({"weightSync": {"transport": "ipc"}}, ("collocated", "hybrid")),
        (
            {"task": {"environment": "tool-use", "name": "calculator"}},
            ("disaggregated", "collocated"),
        ),
        (
            {"task": {"environment": "gymnasium", "name": "CartPole-v1", "rewards": [{"rule": "task"}]}},
            ("disaggregated", "collocated"),
        ),
        ({"sampler": {"engine": "vllm", "tensorParallelSize": 2}}, ("disaggregated",)),
    ],
)
def test_a_plan_offers_what_the_run_would_not_refuse(others: dict[str, Any], modes: tuple[str, ...]) -> None:
    room = room_of(_spec(others))
    assert room.modes == modes
    assert {one.mode for one in candidates(PROFILE, room, Rollout(PROFILE))} == set(modes)


def test_a_runner_up_that_is_hardly_faster_is_called_as_fast() -> None:
    assert runner_up(0.992, 1.0) == "0.992 s (as fast)"
    assert runner_up(1.1, 1.0) == "1.1 s (+10%)"
