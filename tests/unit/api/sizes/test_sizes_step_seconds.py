"""Seconds of a step by what another run measured: each part grows with its own work."""

from __future__ import annotations

from typing import Any

import pytest
from model_configs import MODELS

from rl_api import RunSpec
from rl_api.sizes.run_plan import Place, RunPlan, plan_run
from rl_api.sizes.shape import model_shape
from rl_api.sizes.step_seconds import StepMeasured, StepSeconds, Work, planned_work, scaled

SMALL = model_shape(MODELS["Qwen2.5-0.5B"])
STEPS = [StepMeasured(2.0, 0.1, 4.0, 0.5, 64, 6400), StepMeasured(4.0, 0.3, 8.0, 1.5, 64, 6400)]


def run(*, algorithm: dict[str, Any] | None = None, buffer: int = 0, **parts: dict[str, Any]) -> RunSpec:
    document = {
        "model": {"source": "somewhere"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "algorithm": {"promptsPerStep": 8, "groupSize": 8, **(algorithm or {})},
        "buffer": {"maxStaleness": buffer},
    }
    return RunSpec.model_validate({**document, **parts})


def planned(spec: RunSpec, model: str = "Qwen2.5-0.5B") -> RunPlan:
    learner, sampler = Place(spec.learner.replicas, 1, None), Place(spec.sampler.replicas, 1, None)
    return plan_run(spec, model_shape(MODELS[model]), learner, sampler)


def work(spec: RunSpec, length: float = 100.0, model: str = "Qwen2.5-0.5B") -> Work:
    return planned_work(spec, planned(spec, model), length)[0]


def seconds(spec: RunSpec, length: float = 100.0, model: str = "Qwen2.5-0.5B") -> StepSeconds:
    wanted, tokens = planned_work(spec, planned(spec, model), length)
    return scaled(STEPS, [1.0, 3.0], work(run()), wanted, tokens)


def test_the_same_run_takes_what_was_measured():
    found = seconds(run())
    assert found == StepSeconds(3.0, pytest.approx(0.2), 6.0, 1.0, 2.0, 6400, overlaps=False)
    assert found.total == pytest.approx(10.2)


def test_sampling_beside_learning_takes_as_long_as_the_slower():
    assert seconds(run(buffer=2)).total == 7.0
    assert seconds(run(buffer=2, learner={"replicas": 4})).total == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        (run(learner={"replicas": 4}), {"train": 1.5}),
        (run(sampler={"replicas": 2}), {"generate": 1.5, "score": 0.1}),
        (run(sampler={"tensorParallelSize": 2, "engine": "vllm"}), {"generate": 1.5}),
        (run(algorithm={"groupSize": 16}), {"generate": 6.0, "score": 0.4, "train": 12.0}),
        (run(algorithm={"epochs": 3}), {"train": 18.0}),
        (run(learner={"activationCheckpointing": True}), {"train": 8.0}),
        (run(algorithm={"kl": {"coefficient": 0.1}}), {"train": 8.0}),
        (run(model={"source": "somewhere", "dtype": "bfloat16"}), {"publish": 0.5}),
    ],
)
def test_each_part_grows_with_its_own_work(spec: RunSpec, changed: dict[str, float]):
    expected = {"generate": 3.0, "score": 0.2, "train": 6.0, "publish": 1.0, "checkpoint": 2.0} | changed
    found = seconds(spec)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_a_critic_learns_and_is_saved_as_well():
    found = seconds(run(algorithm={"name": "ppo"}))
    assert (found.train, found.checkpoint) == (12.0, pytest.approx(4.0, rel=0.01))


def test_lora_needs_no_gradients_of_frozen_weights_and_few_moments():
    found = seconds(run(learner={"lora": {"rank": 4, "targetModules": ["q_proj"]}}))
    assert found.train == 4.0
    assert found.checkpoint == pytest.approx(2 / 3, rel=0.01)


def test_larger_models_and_longer_answers_take_longer():
    small, large = seconds(run()), seconds(run(), model="Qwen2.5-7B")
    ratio = model_shape(MODELS["Qwen2.5-7B"]).parameters / SMALL.parameters
    assert large.train / small.train == pytest.approx(ratio)
    assert large.publish / small.publish == pytest.approx(ratio)
    assert large.score == small.score
    assert seconds(run(), length=200.0).generate == 2 * small.generate


def test_experts_count_as_far_as_a_token_passes_them():
    shape = model_shape(MODELS["Qwen3-30B-A3B"])
    found = seconds(run(), model="Qwen3-30B-A3B")
    assert found.generate / 3.0 == pytest.approx(shape.active_parameters / SMALL.parameters)
    assert found.publish == pytest.approx(shape.parameters / SMALL.parameters)


def test_without_a_checkpoint_nothing_is_said_of_one():
    assert scaled(STEPS, [], work(run()), work(run()), 1.0).checkpoint is None
