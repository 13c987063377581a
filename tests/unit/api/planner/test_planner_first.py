"""With which placement a run begins of which nothing is measured."""

from __future__ import annotations

from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_api.planner.first import (
    as_asked,
    begins_by_prior,
    first_placement,
    room_as_asked,
)
from rl_api.planner.forecast import forecast
from rl_api.planner.prior import NOMINAL, Prior, prior_of
from rl_api.planner.profile import RunProfile
from rl_api.planner.room import placement_of, room_of
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.sizes.speeds import ACCELERATOR, Speed

# A sampler decodes a quarter of its answers at a time: learners could begin long before the last one is there.
WAVES: dict[str, Any] = {
    "model": {"source": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    "algorithm": {"promptsPerStep": 32, "groupSize": 8},
    "sampler": {"replicas": 4, "maxSequences": 16, "maxNewTokens": 1024},
    "learner": {"replicas": 4},
    "buffer": {"capacity": 1024},
    "placement": {"replan": {}},
}


def run(**spec: Any) -> RLTrainingRun:
    return RLTrainingRun.model_validate({"metadata": {"name": "first"}, "spec": WAVES | spec})


def prior(of: RLTrainingRun, known: bool = False) -> Prior:
    speed = ACCELERATOR if not known else Speed(989e12, 3.35e12, 50e9, 25e9, name="H100")
    return prior_of(of.spec, NOMINAL if known else None, speed, speed)


def test_a_run_that_may_change_its_placement_begins_with_what_is_much_faster() -> None:
    mine = run()
    found = first_placement(mine, prior(mine))
    assert found is not None
    placement = found.run.spec.placement
    assert placement.mode == "auto"
    assert (placement.shared_samplers, found.run.spec.sampler.replicas, found.run.spec.learner.replicas) == (
        0,
        4,
        4,
    )
    assert placement.part_groups is not None
    assert placement.part_groups < 32
    assert found.planned.part_groups == placement.part_groups
    # Seconds of a model that nobody has looked at are none.
    assert (found.seconds, found.planned.predicted_step_seconds) == (None, None)
    assert f"parts of {placement.part_groups} of 32 groups would take" in found.reason
    assert found.reason.endswith("(nothing was measured: a prior, good for ratios alone)")


def test_seconds_are_told_where_model_and_devices_are_known() -> None:
    mine = run()
    found = first_placement(mine, prior(mine, known=True))
    assert found is not None
    assert found.seconds == pytest.approx(found.found.best.predicted_step_seconds, rel=0.01)
    assert "s per step where this one takes" in found.reason
    assert found.reason.endswith("(nothing was measured: a prior)")


def test_for_little_it_begins_as_its_file_has_it() -> None:
    mine = run(placement={"replan": {"threshold": 0.9}})
    assert first_placement(mine, prior(mine)) is None
    # All at once there is nothing for learners to begin with.
    together = run(sampler={"replicas": 4, "maxSequences": 512, "maxNewTokens": 1024})
    assert first_placement(together, prior(together)) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"placement": {}},
        {"placement": {"mode": "disaggregated"}},
        {"placement": {"replan": {}, "sharedSamplers": 0}},
        {"placement": {"replan": {}, "partGroups": 8}},
        {"placement": {"replan": {}, "handOverAt": 0.5}},
        {"sampler": {"engine": "endpoint", "endpoint": {"url": "http://there:8000", "folder": "/w"}}},
        {"trainer": {"kind": "command", "command": ["true"]}},
    ],
)
def test_it_chooses_for_no_run_that_says_something_or_keeps_its_own(spec: dict[str, Any]) -> None:
    assert begins_by_prior(run().spec)
    assert not begins_by_prior(run(**spec).spec)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"promptsPerStep": 32, "groupSize": 8, "epochs": 2},
        {"name": "ppo", "promptsPerStep": 256, "groupSize": 1},
    ],
)
def test_what_the_algorithm_cannot_do_is_not_chosen(algorithm: dict[str, Any]) -> None:
    whole = run(algorithm=algorithm)
    assert first_placement(whole, prior(whole)) is None


def test_what_this_version_cannot_run_is_not_chosen() -> None:
    def no_parts(spec: RunSpec) -> None:
        if spec.placement.part_groups is not None:
            raise InvalidConfig("no parts")

    mine = run()
    assert first_placement(mine, prior(mine), no_parts) is None


def test_what_a_prior_has_chosen_binds_no_measurement() -> None:
    """With parts that cost much the whole step is the best again, and it is the file's placement."""
    mine = run()
    found = first_placement(mine, prior(mine))
    assert found is not None
    began = found.run
    assert as_asked(began.spec) == mine.spec
    measured = RunProfile.model_validate(
        prior(mine).profile.to_document() | {"steps": 20, "learner": {"alpha": 100.0, "beta": 1e-6}}
    )
    free, bound = room_as_asked(began.spec), room_of(began.spec)
    assert (bound.shared, bound.part_groups) == (0, began.spec.placement.part_groups)
    assert (free.shared, free.part_groups, free.now) == (None, None, placement_of(began.spec))
    again = forecast(measured, began, lambda spec: None, as_many=True, room=free)
    assert again is not None
    assert again.best.part_groups == 32
    assert again.gain > 0.5
