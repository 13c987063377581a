"""What is expected of a run of which nothing was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, median
from typing import Any

import pytest

from rl_api.planner.cost import learner_bytes
from rl_api.planner.first import room_by_prior
from rl_api.planner.placement import Placement
from rl_api.planner.plan import Plan, make_plan, predict
from rl_api.planner.prior import COMPUTED, MEDIAN, NOMINAL, READ, Prior, answer_lengths, prior_of
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.sizes.memory import GB, Device
from rl_api.sizes.run_plan import Place, plan_run
from rl_api.sizes.shape import ModelShape, model_shape
from rl_api.sizes.speeds import ACCELERATOR, CORE, Speed, speeds_of

NAMED = replace(ACCELERATOR, name="H100")
P = NOMINAL.parameters


def spec_of(**spec: Any) -> RunSpec:
    return RLTrainingRun.model_validate(
        {
            "metadata": {"name": "prior"},
            "spec": {
                "model": {"source": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "algorithm": {"promptsPerStep": 32, "groupSize": 8},
                "sampler": {"replicas": 4, "maxSequences": 256, "maxNewTokens": 1024, "engine": "vllm"},
                "learner": {"replicas": 4, "resources": {"accelerators": 1}},
                "buffer": {"capacity": 1024},
                **spec,
            },
        }
    ).spec


def prior(shape: ModelShape | None = NOMINAL, speed: Speed = NAMED, **spec: Any) -> Prior:
    return prior_of(spec_of(**spec), shape, speed, speed)


def planned(**spec: Any) -> Plan:
    found = spec_of(**spec)
    one = prior_of(found, None, *speeds_of(found))
    return make_plan(one.profile, room_by_prior(found, one), sensitivity=False, most=4)


def test_decoding_waits_for_memory_and_learning_for_operations() -> None:
    found = prior().profile
    assert found.steps == 0
    assert found.decode.base == pytest.approx(2 * P / (READ * 3.35e12))
    assert found.decode.per_active == pytest.approx(2 * P / (COMPUTED * 989e12))
    # 28 layers of 4 heads of 128, keys and values, 2 bytes each.
    assert found.decode.per_cached_token == pytest.approx(2 * 28 * 4 * 128 * 2 / (READ * 3.35e12))
    assert found.prefill_tokens_per_second == pytest.approx(COMPUTED * 989e12 / (2 * P))
    assert found.learner.beta == pytest.approx(6 * P / (COMPUTED * 989e12))
    assert (found.learner.log_prob, found.learner.value) == (0.0, 0.0)
    assert found.learner.optimizer == pytest.approx(28 * P / (READ * 3.35e12))
    assert found.learner.all_reduce == pytest.approx(4 * P / 50e9)
    assert found.publish_seconds == pytest.approx(2 * P / 50e9)
    assert found.switch.sampler.onload == pytest.approx(2 * P / 25e9, rel=1e-6)
    assert found.switch.learner.offload == pytest.approx(16 * P / 25e9)
    assert (found.score_seconds, found.tool_seconds, found.overhead_seconds) == (0.0, 0.0, 0.0)


def test_passes_are_those_that_the_run_makes() -> None:
    plain = prior().profile.learner
    assert prior(algorithm={"kl": {"coefficient": 0.1}}).profile.learner.log_prob == pytest.approx(
        plain.beta / 3
    )
    twice = prior(algorithm={"epochs": 2}).profile.learner
    assert (twice.beta, twice.log_prob) == pytest.approx((2 * plain.beta, plain.beta / 3))
    ppo = prior(algorithm={"name": "ppo", "groupSize": 1}).profile.learner
    assert ppo.value == pytest.approx(4 / 3 * ppo.beta)
    again = prior(learner={"activationCheckpointing": True}).profile.learner
    assert again.beta == pytest.approx(4 / 3 * plain.beta)
    adapters = prior(learner={"lora": {"rank": 8}}).profile.learner
    assert adapters.beta == pytest.approx(2 / 3 * plain.beta)
    assert adapters.optimizer < plain.optimizer / 100
    shards = prior(learner={"replicas": 4, "parallelism": "fsdp2"}).profile.learner
    assert shards.optimizer == pytest.approx(plain.optimizer / 4)
    assert shards.alpha > plain.alpha + 3 * 2 * P / 51e9


def test_devices_divide_a_sampler() -> None:
    one, two = prior().profile, prior(sampler={"tensorParallelSize": 2, "engine": "vllm"}).profile
    assert two.decode.base == pytest.approx(one.decode.base / 2)
    assert two.decode.per_active == pytest.approx(one.decode.per_active / 2)
    assert two.devices.per_sampler == 2


def test_all_terms_grow_with_parameters_and_shrink_with_speed() -> None:
    """So that a shape that stands for another one does not change how placements compare."""
    twice = replace(NOMINAL, layers=2 * NOMINAL.layers, **dict.fromkeys(
        ("layer_parameters", "active_layer_parameters"), NOMINAL.layer_parameters * 2
    ))  # fmt: skip
    small, large = prior().profile, prior(twice).profile
    ratio = twice.parameters / P
    for one, other in (
        (small.decode.base, large.decode.base),
        (small.decode.per_active, large.decode.per_active),
        (small.learner.beta, large.learner.beta),
        (small.learner.per_pass or 0, large.learner.per_pass or 0),
        (small.learner.optimizer, large.learner.optimizer),
        (small.publish_seconds, large.publish_seconds),
        (small.switch.learner.onload, large.switch.learner.onload),
    ):
        assert other / one == pytest.approx(ratio, rel=1e-3)
    slow = prior(speed=CORE).profile
    assert slow.decode.base > 100 * small.decode.base
    assert slow.learner.beta > 10_000 * small.learner.beta


def test_answers_have_a_long_tail_that_is_cut() -> None:
    found = answer_lengths(27_648)
    assert max(found) == 27_648
    assert median(found) == pytest.approx(MEDIAN * 27_648, rel=0.01)
    # As verl publishes of its 7B: 10,426 tokens on average.
    assert mean(found) == pytest.approx(10_426, rel=0.03)
    assert 0.03 < sum(one == 27_648 for one in found) / len(found) < 0.06
    assert set(answer_lengths(1)) == {1}


@pytest.mark.parametrize(
    ("shape", "speed", "absolute"),
    [(NOMINAL, NAMED, True), (None, NAMED, False), (NOMINAL, ACCELERATOR, False), (NOMINAL, CORE, False)],
)
def test_what_is_only_a_ratio_is_said(shape: ModelShape | None, speed: Speed, absolute: bool) -> None:
    found = prior(shape, speed)
    assert found.absolute is absolute
    assert ("the model's shape" in found.guessed) is (shape is None)
    assert found.words == "nothing was measured: a prior" + ("" if absolute else ", good for ratios alone")


def test_memory_counts_only_where_model_and_devices_are_known() -> None:
    memory = 80 * GB
    for unknown in (prior_of(spec_of(), None, NAMED, NAMED, memory), prior()):
        assert unknown.profile.devices.memory is None
        assert unknown.profile.memory.learner.weights == 0
    spec = spec_of(learner={"replicas": 8, "parallelism": "fsdp2", "resources": {"accelerators": 1}})
    known = prior_of(spec, NOMINAL, NAMED, NAMED, memory).profile
    assert known.devices.memory == memory
    assert known.memory.learner.divided
    # Of 8 ranks each has an eighth of 16 bytes for each parameter, as of two it would have a half.
    held = known.memory.learner.weights + known.memory.learner.moments
    assert held == pytest.approx(16 * P / 2, rel=1e-3)
    # As much as `rltrain plan` says of one of the ranks.
    planned = plan_run(spec, NOMINAL, Place(8, 1, Device(memory)), Place(4, 1, Device(memory)))
    said = planned.roles[0].parts.total - planned.roles[0].parts.checkpoint
    assert learner_bytes(known, 8) == pytest.approx(said, rel=0.05)


LONG: Any = {"replicas": 4, "maxSequences": 256, "maxNewTokens": 8192, "engine": "vllm"}
SHARDS: Any = {"replicas": 4, "parallelism": "fsdp2", "resources": {"accelerators": 1}}


def test_strictly_on_policy_sharing_pays_as_half_of_the_devices_would_wait() -> None:
    found = planned(sampler=LONG, learner=SHARDS)
    assert found.shared > 0
    alone = min(one.predicted_step_seconds for one in found.alternatives if one.shared == 0)
    assert alone > 1.1 * found.predicted_step_seconds


def test_with_staleness_and_long_tails_each_has_its_own_devices() -> None:
    found = planned(sampler=LONG, learner=SHARDS, buffer={"maxStaleness": 1, "capacity": 1024})
    assert (found.mode, found.shared) == ("disaggregated", 0)


def test_moving_tensors_costs_what_the_way_to_main_memory_takes() -> None:
    spec = spec_of()
    bus = replace(ACCELERATOR, host=ACCELERATOR.host / 100)
    fast, slow = (prior_of(spec, None, one, one) for one in (ACCELERATOR, bus))
    assert room_by_prior(spec, fast).residency == "swap", "of accelerators whose memory is not known"
    shares = Placement(4, 4, 4, 32, swap=True)
    one, other = (predict(each.profile, shares).step_seconds for each in (fast, slow))
    # Each way 16 bytes of a learner for each parameter, and 2 of a sampler.
    assert other - one == pytest.approx(0.99 * 2 * 18 * P / bus.host, rel=1e-3)


def test_any_known_family_makes_a_prior() -> None:
    shape = model_shape(
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 99, "n_positions": 128}
    )
    found = prior(shape, learner={"lora": {"rank": 4}}).profile
    assert math.isfinite(found.learner.beta)
