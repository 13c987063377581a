"""Workers of a task in plans: models that score and simulators, for which samplers do not stand still."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_api.planner.candidates import estimate
from rl_api.planner.gantt import as_text
from rl_api.planner.placement import Placement
from rl_api.planner.plan import make_plan, predict, scaled_profile
from rl_api.planner.profile import DecodeProfile, DevicesProfile, LearnerProfile, RunProfile, load_profile
from rl_api.planner.rollout import Rollout
from rl_api.planner.room import Room
from rl_api.planner.simulated import Outage
from rl_api.planner.simulator import simulate
from rl_api.planner.stations import (
    JUDGE,
    SIMULATOR,
    Served,
    Station,
    as_many_workers,
    least_seconds,
    with_workers,
)
from rl_api.run import RunSpec

PROFILE = RunProfile(
    group_size=2,
    prompts_per_step=4,
    decode=DecodeProfile(base=1.0, slots=64),
    lengths=(10,),
    learner=LearnerProfile(alpha=1.0, beta=0.1),
    publish_seconds=2.0,
)
"""Answers of 10 tokens in 10 s, however many; learning and publishing 11 s by one rank."""
ALONE = Placement(1, 1, 0, 4)


def _with(reward_models: int = 1, simulators: int = 1, **changes: object) -> RunProfile:
    devices = DevicesProfile(reward_models=reward_models, simulators=simulators)
    return PROFILE.model_copy(update={"devices": devices, **changes})


def test_a_station_takes_what_comes_in_its_order() -> None:
    station = Station(2, 3.0)
    assert [station.serve(at) for at in (1.0, 1.0, 2.0, 9.0)] == [
        Served(0, 1.0, 4.0),
        Served(1, 1.0, 4.0),
        Served(0, 4.0, 7.0),
        Served(1, 9.0, 12.0),
    ]


@pytest.mark.parametrize(("workers", "fewer"), [(1, 1.0), (4, 2.0), (5, 2.0), (2, 7.0), (0, 3.0), (3, 0.8)])
def test_a_station_of_a_smaller_run_is_as_busy(workers: int, fewer: float) -> None:
    count = 7_000
    station = Station(workers, 2.0, fewer)
    seconds = max(station.serve(0.0).end for _ in range(count))
    assert seconds == pytest.approx(2.0 * count * fewer / max(1, workers), rel=1e-2)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 16.0), (2, 8.0), (4, 4.0), (8, 2.0)])
def test_reward_models_share_what_has_ended(workers: int, seconds: float) -> None:
    """8 answers end at 10 s, and a group takes 4 s of one model."""
    profile = _with(workers, judge_seconds=4.0)
    assert simulate(profile, ALONE, steps=1).published == pytest.approx([10 + seconds + 11])
    assert Rollout(profile).curve(1).seconds == pytest.approx(10 + seconds)


def test_samplers_decode_while_reward_models_score() -> None:
    """A group every 10 s, which is scored while the next one is decoded; by the sampler itself it would take its time."""
    slow = DecodeProfile(base=1.0, slots=2)
    judged = simulate(_with(decode=slow, judge_seconds=8.0), ALONE, steps=1)
    assert judged.published == pytest.approx([40 + 8 + 11])
    assert simulate(_with(decode=slow, score_seconds=8.0), ALONE, steps=1).published == pytest.approx([83.0])
    assert Rollout(_with(decode=slow, judge_seconds=8.0)).curve(1).groups == pytest.approx((18, 28, 38, 48))
    assert [span.start for span in judged.spans if span.row == "reward model 0"][::2] == [10, 20, 30, 40]
    assert any(line.startswith("reward model 0 |") for line in as_text(judged.spans, 59.0))


def test_a_reward_model_that_is_slower_than_samplers_is_what_a_step_takes() -> None:
    profile = _with(judge_seconds=8.0, max_staleness=1, decode=DecodeProfile(base=0.1, slots=64))
    assert least_seconds(profile) == 32.0
    assert estimate(profile, ALONE, Rollout(profile)) == 32.0
    assert predict(profile, ALONE).step_seconds == pytest.approx(32.0)
    assert predict(with_workers(profile, JUDGE, 2), ALONE).step_seconds == pytest.approx(16.0)


def test_a_large_run_waits_as_long_as_the_smaller_one_that_stands_for_it() -> None:
    large = _with(
        8,
        prompts_per_step=4096,
        judge_seconds=0.05,
        decode=DecodeProfile(base=0.001, slots=16),
        lengths=(100, 300),
    )
    placement = Placement(8, 8, 0, 4096)
    run = simulate(large, placement, steps=1)
    whole = run.published[0]
    assert predict(large, placement).published[0] == pytest.approx(whole, rel=0.02)
    sampled = whole - run.learning - large.publish_seconds
    assert Rollout(large).curve(8).seconds == pytest.approx(sampled, rel=0.05)


def test_an_answer_is_scored_after_its_environment_has_spoken() -> None:
    """It waits 3 s for tools, and is over no earlier than its simulator has done its work, and that of those before it."""
    for simulators, last in ((8, 3.0), (4, 4.0), (1, 16.0)):
        profile = _with(8, simulators, tool_seconds=3.0, simulator_seconds=2.0, judge_seconds=2.0)
        assert simulate(profile, ALONE, steps=1).published == pytest.approx([10 + last + 1 + 11])


def test_other_numbers_of_simulators_change_what_is_waited_for_others_turns() -> None:
    profile = _with(simulators=2, tool_seconds=5.0, simulator_seconds=0.5, queued_seconds=3.0)
    more = with_workers(profile, SIMULATOR, 6)
    assert (more.tool_seconds, more.queued_seconds, more.simulator_seconds) == (3.0, 1.0, 0.5)
    assert with_workers(more, SIMULATOR, 2) == profile


def test_a_profile_is_of_as_many_workers_as_the_run_has() -> None:
    task = {"environment": "gymnasium", "name": "FrozenLake-v1", "rewards": [{"rule": "model"}]}
    workers = {"simulators": {"replicas": 4}, "rewardModel": {"source": "org/judge", "replicas": 3}}
    spec = RunSpec.model_validate({"model": {"source": "tiny"}, "task": task | workers})
    found = as_many_workers(_with(1, 2, queued_seconds=1.0, tool_seconds=1.0), spec)
    assert (found.devices.reward_models, found.devices.simulators, found.tool_seconds) == (3, 4, 0.5)
    assert as_many_workers(PROFILE, spec) == PROFILE, "nothing is known of them"


def test_a_sampler_that_is_lost_loses_what_was_scored_for_its_groups() -> None:
    profile = _with(judge_seconds=4.0)
    lost = simulate(profile, Placement(1, 2, 0, 4), steps=2, outages=[Outage(0, 12.0, 30.0)])
    assert lost.trained == list(range(8))


def test_handing_over_counts_what_was_there_before() -> None:
    profile = _with(
        2,
        lengths=(5, 10, 20, 40),
        prompts_per_step=16,
        judge_seconds=2.0,
        decode=DecodeProfile(base=1.0, slots=4),
    )
    quick = profile.model_copy(update={"judge_seconds": 0.0})
    (moment, curve), (_, quicker) = (Rollout(one).handed_over(4, 2, 0.5) for one in (profile, quick))
    assert moment == Rollout(profile).curve(4).until(0.5)
    assert curve.seconds > quicker.seconds
    assert curve.seconds >= 16 * 2.0 / 2


def test_a_plan_says_what_more_reward_models_would_save_and_that_fewer_would_do() -> None:
    limited = _with(2, judge_seconds=9.0, max_staleness=1, decode=DecodeProfile(base=0.1, slots=64))
    plan = make_plan(limited, Room(2, modes=("disaggregated",)))
    assert plan.limits == "of 18 s per step reward models score for 18 s: that is what limits"
    assert plan.workers == (
        "reward models limit: with 4 in place of 2 (task.rewardModel.replicas) a step would take 11 s (-39%)",
    )
    assert len(plan.sensitivity) == 3
    assert "times of the task's workers are 29 % too low" in plan.sensitivity[2]
    enough = make_plan(with_workers(limited, JUDGE, 4), Room(2, modes=("disaggregated",)))
    assert enough.workers == ()
    assert "reward models" not in enough.limits
    idle = make_plan(with_workers(limited, JUDGE, 40), Room(2, modes=("disaggregated",)))
    assert idle.workers == (
        "reward models wait for work: 4 in place of 40 (task.rewardModel.replicas) would do",
    )


def test_a_plan_says_what_more_simulators_would_save() -> None:
    limited = _with(simulators=1, tool_seconds=42.0, simulator_seconds=5.0, queued_seconds=36.0)
    (said,) = make_plan(limited, Room(2, modes=("disaggregated",))).workers
    assert said.startswith("simulators limit: with ")
    assert "in place of 1 (task.simulators.replicas) a step would take " in said


def test_the_longest_answer_is_not_what_reward_models_take() -> None:
    said = make_plan(_with(judge_seconds=20.0), Room(2, modes=("disaggregated",))).limits
    assert "reward models score for 80 s: that is what limits" in said


def test_times_of_workers_are_multiplied_together() -> None:
    found = scaled_profile(
        _with(judge_seconds=1.0, tool_seconds=5.0, simulator_seconds=1.0, queued_seconds=2.0), workers=2.0
    )
    assert (found.judge_seconds, found.tool_seconds) == (2.0, 8.0)
    assert (found.simulator_seconds, found.queued_seconds) == (2.0, 4.0)


def test_a_profile_from_before_there_were_stations_is_read(tmp_path: Path) -> None:
    document = PROFILE.to_document()
    for name in ("judgeSeconds", "simulatorSeconds", "queuedSeconds"):
        del document[name]
    document["devices"] = {"learner": 1, "sampler": 2}
    (tmp_path / "old.json").write_text(json.dumps(document))
    found = load_profile(tmp_path / "old.json")
    assert (found.judge_seconds, found.devices.reward_models, found.devices.simulators) == (0.0, 0, 0)
    assert least_seconds(found) == 0.0
