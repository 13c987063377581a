from __future__ import annotations

import json
import math

import numpy as np
import pytest
from model_configs import MODELS

from rl_api import RunSpec
from rl_api.errors import TrainingDiverged
from rl_api.sizes.operations import forward_operations
from rl_api.sizes.shape import model_shape
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.observe.timeline import Span
from rl_trainer.run.counters import Counters, operations
from rl_trainer.trajectory import Group, Trajectory

SPEC = RunSpec.model_validate(
    {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "stop": {"maxSteps": 50},
    }
)


def record(**values: float) -> StepRecord:
    """A step's record with these values."""
    return StepRecord(**{"step": 4, "time": 0.0, "wall_seconds": 0.1, "reward_mean": 0.0} | values)  # type: ignore[arg-type]


def test_progress_is_rounded_as_people_read_it():
    counters = Counters(step=4, heldout=0.41500001)
    counters.saw_step(0.12345, 0.3)
    shown = counters.progress(
        SPEC,
        record(
            reward_mean=0.123456, tokens_per_second=2001.7994012858544, staleness_mean=0.987, buffer_fill=64
        ),
    )
    assert (shown.reward, shown.heldout_score, shown.tokens_per_second) == (0.123, 0.415, 2002)
    assert (shown.buffer_fill, shown.staleness, shown.eta_seconds) == (0.25, 0.99, 6)
    assert (shown.step, shown.max_steps) == (4, 50)


def test_what_is_not_known_is_null():
    shown = Counters(step=1).progress(SPEC, record(reward_mean=math.nan, tokens_per_second=math.nan))
    assert (shown.reward, shown.heldout_score, shown.tokens_per_second, shown.eta_seconds) == (None,) * 4
    json.loads(shown.model_dump_json())


@pytest.mark.parametrize("wrong", [-1.0, math.inf, 1e300])
def test_what_a_program_says_beyond_all_bounds_is_not_known(wrong: float) -> None:
    names = ("buffer_fill", "staleness_mean", "tokens_per_second", "total_tokens_per_second", "sampler_cpus")
    bytes_of = ("weights_bytes", "answers_between_nodes_bytes", "learner_gpu_busy_ratio")
    shown = Counters(step=1).progress(SPEC, record(**dict.fromkeys((*names, *bytes_of), wrong)))
    assert (shown.object_store_bytes, shown.between_nodes_bytes, shown.learner_gpu_busy) == (None,) * 3
    rates = (shown.staleness, shown.tokens_per_second, shown.total_tokens_per_second, shown.sampler_cpus)
    assert rates == ((wrong,) * 4 if wrong == 1e300 else (None,) * 4)


def test_counters_come_back_from_a_checkpoint():
    counters = Counters(step=7, heldout=0.5)
    counters.saw_step(0.1, 0.25)
    counters.saw_step(0.1, 0.75)
    again = Counters.load(json.loads(json.dumps(counters.dump())))
    assert (again.step, again.heldout, list(again.rewards)) == (7, 0.5, [0.25, 0.75])
    assert (again.resumed_from, again.checkpointed_step) == (7, 7)


def reason(
    stop: dict[str, object], rewards: list[float], heldout: float | None = None, evaluated: bool = False
) -> str | None:
    counters = Counters(step=5, earlier_seconds=10.0, heldout=heldout)
    for reward in rewards:
        counters.saw_step(0.1, reward)
    task = SPEC.task.model_dump(by_alias=True) | ({"evaluation": {}} if evaluated else {})
    return counters.stop_reason(
        RunSpec.model_validate(SPEC.model_dump(by_alias=True) | {"stop": stop, "task": task})
    )


@pytest.mark.parametrize(
    ("stop", "state", "expected"),
    [
        ({"maxSteps": 6}, {}, None),
        ({"maxSteps": 5}, {}, "maxSteps"),
        ({"maxSteps": 9, "maxDuration": "10s"}, {}, "maxDuration"),
        ({"maxSteps": 9, "maxDuration": "60s"}, {}, None),
        ({"maxSteps": 9, "targetReward": 0.4}, {}, None),  # too few steps for a mean
        ({"maxSteps": 9, "targetReward": 0.4}, {"rewards": [0.0, *[0.5] * 10]}, "targetReward"),
        ({"maxSteps": 9, "targetReward": 0.6}, {"rewards": [0.5] * 10}, None),
        ({"maxSteps": 9, "targetReward": 0.8}, {"evaluated": True, "heldout": 0.8}, "targetReward"),
        ({"maxSteps": 9, "targetReward": 0.4}, {"evaluated": True, "rewards": [1.0] * 10}, None),
        ({"maxSteps": 5, "targetReward": 0.8}, {"evaluated": True, "heldout": 0.9}, "targetReward"),
    ],
)
def test_a_run_ends_for_the_first_reason_that_holds(
    stop: dict[str, object], state: dict[str, object], expected: str | None
):
    assert reason(stop, **{"rewards": [0.5] * 5} | state) == expected  # type: ignore[arg-type]


def test_three_skipped_steps_in_a_row_end_the_run_with_advice():
    Counters(skipped_in_a_row=2).check_divergence()
    with pytest.raises(TrainingDiverged, match=r"3 steps in a row; lower algorithm\.learningRate"):
        Counters(skipped_in_a_row=3).check_divergence()


def test_shares_of_time_that_samplers_and_learners_work() -> None:
    counters = Counters()
    assert counters.busy == (None, None)
    counters.saw_step(1.0, 0.5)
    assert counters.busy == (None, None), "a program of the user's has no spans"
    counters = Counters()
    step = [
        Span("sampler 0", "generate", 0.0, 6.0),
        Span("sampler 0", "score", 6.0, 8.0),
        Span("sampler 0", "load weights", 8.0, 9.0),
        Span("sampler 1", "generate", 0.0, 2.0),
        Span("learner 0", "train", 8.0, 10.0),
        Span("learner 1", "train", 8.0, 9.0),
        Span("driver", "wait", 0.0, 8.0),
    ]
    counters.saw_step(10.0, 0.5, 2, step)
    assert counters.busy == (pytest.approx(0.5), pytest.approx(0.15))
    counters.saw_step(30.0, 0.5, 2, [])
    assert counters.busy == (pytest.approx(0.125), pytest.approx(0.0375))
    shown = counters.progress(SPEC, record())
    assert (shown.sampler_busy, shown.learner_busy) == (0.125, 0.037)
    for _ in range(20):  # steps that were long ago do not count; what was made before its step began does
        counters.saw_step(1.0, 0.5, 1, [Span("sampler 0", "generate", 0.0, 3.0)])
    assert counters.busy == (1.0, 0.0)


def test_operations_per_second_are_those_of_the_last_steps() -> None:
    counters = Counters()
    assert counters.rates == {}
    counters.saw_step(1.0, 0.5)
    assert counters.rates == {}, "a program of the user's says nothing of operations"
    decoded = [Span("sampler 0", "generate", 0.0, 8.0)]
    for _ in range(2):  # two groups that ended together: the spans are with the first
        counters.saw_step(1.0, 0.5, 1, decoded, {"sampler": 8e9})
        counters.saw_step(1.0, 0.5, 1, [], {"sampler": 8e9})
        assert counters.rates["sampler_flops"] == pytest.approx(2e9)
    for _ in range(20):
        counters.saw_step(1.0, 0.5, 1, decoded, {"sampler": 8e9})
    assert counters.rates == {"sampler_flops": pytest.approx(1e9)}


def test_operations_of_a_dialogue_have_what_tools_said_in_each_answer() -> None:
    shape = model_shape(MODELS["Qwen2.5-7B"])
    mask = np.array([False] * 4 + [True] * 3 + [False] * 5 + [True] * 3)
    one = Trajectory(
        np.zeros(15, np.int32), mask, log_probs=np.zeros(6, np.float32), versions=np.zeros(6, np.int32)
    )
    none = Trajectory(
        np.zeros(15, np.int32),
        mask & False,
        log_probs=np.zeros(0, np.float32),
        versions=np.zeros(0, np.int32),
    )
    group = Group.of(0, [one, none, one])
    assert group.prompt_length == 4
    assert Group.load(json.loads(json.dumps(group.dump())), b"").prompt_length == 4
    found = operations(SPEC, shape, [group])
    assert found["sampler"] == forward_operations(shape, [6, 0, 6], [15] * 3, 4)
