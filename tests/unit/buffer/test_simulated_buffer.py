"""The planner's idea of buffer and leases against these: runs in virtual time, each with both."""

from __future__ import annotations

import random

import pytest

from rl_api.planner.placement import Placement
from rl_api.planner.profile import DecodeProfile, LearnerProfile, RunProfile
from rl_api.planner.simulated import Outage, Simulated
from rl_api.planner.simulator import simulate
from rl_trainer.buffer.simulated import SimulatedBuffer, SimulatedLeases

# Long simulations: to watch each of their lines would take twice as long again, and other tests run the same ones.
pytestmark = pytest.mark.no_cover

RNG = random.Random(4)
PROFILE = RunProfile(
    group_size=3,
    prompts_per_step=12,
    decode=DecodeProfile(base=0.01, per_active=0.002, per_cached_token=1e-6, slots=8),
    prefill_tokens_per_second=5000.0,
    prompt_tokens=20.0,
    lengths=tuple(min(400, max(2, int(RNG.lognormvariate(4, 0.9)))) for _ in range(300)),
    limit=400,
    learner=LearnerProfile(alpha=0.02, beta=2e-4, all_reduce=0.05),
    publish_seconds=0.05,
)

PLACEMENTS = (
    Placement(1, 2, 0, 12),
    Placement(1, 2, 0, 3),
    Placement(2, 2, 2, 12),
    Placement(2, 2, 2, 4),
    Placement(2, 2, 2, 12, interrupt=False),
    Placement(2, 4, 2, 3),
    Placement(2, 4, 2, 3, 0.5),
)


def _both(
    profile: RunProfile, placement: Placement, steps: int, *outages: Outage
) -> tuple[Simulated, Simulated, SimulatedBuffer]:
    buffer, leases = SimulatedBuffer(profile, placement.samplers, placement.shared), SimulatedLeases()
    real = simulate(profile, placement, steps=steps, queue=buffer, leases=leases, outages=outages)
    assert (leases.granted > steps) == (placement.shared > 0)
    return simulate(profile, placement, steps=steps, outages=outages), real, buffer


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda one: one.words(12))
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_planners_buffer_does_what_the_buffer_does(placement: Placement, staleness: int) -> None:
    profile = PROFILE.model_copy(update={"max_staleness": staleness})
    ours, real, buffer = _both(profile, placement, 6)
    assert real.published == pytest.approx(ours.published)
    assert sorted(real.trained) == sorted(ours.trained)
    assert buffer.state.max_staleness_seen <= staleness


@pytest.mark.parametrize("staleness", [0, 2])
def test_with_samplers_that_are_lost_no_prompt_is(staleness: int) -> None:
    profile = PROFILE.model_copy(update={"max_staleness": staleness})
    for placement in PLACEMENTS:
        lost = [Outage(0, 1.0, 2.0), Outage(1, 4.0, 1.0)]
        _, real, buffer = _both(profile, placement, 5, *lost)
        assert len(set(real.trained)) == len(real.trained) == 5 * profile.prompts_per_step
        assert buffer.state.max_staleness_seen <= staleness
        assert not buffer.state.drops


def test_random_runs_come_to_their_end_and_are_the_same_with_both() -> None:
    for seed in range(80):
        rng = random.Random(seed)
        profile = PROFILE.model_copy(
            update={
                "group_size": rng.choice((1, 2, 5)),
                "prompts_per_step": rng.choice((1, 3, 4, 8)),
                "max_staleness": rng.choice((0, 0, 1, 2, 5)),
                "score_seconds": rng.choice((0.0, 0.2)),
                "judge_seconds": rng.choice((0.0, 0.7)),
                "tool_seconds": rng.choice((0.0, 0.3)),
                "decode": PROFILE.decode.model_copy(update={"slots": rng.choice((1, 2, 8, 64))}),
            }
        )
        learners = rng.randint(1, 4)
        shared = rng.randint(0, learners)
        placement = Placement(
            learners,
            shared + rng.randint(0 if shared else 1, 3),
            shared,
            rng.randint(1, profile.prompts_per_step),
            rng.choice((None, 0.3, 1.0)),
            rng.random() < 0.7,
        )
        ours, real, _ = _both(profile, placement, 4)
        assert real.published == pytest.approx(ours.published), (seed, placement)
