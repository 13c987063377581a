from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_api import RunSpec
from rl_api.errors import PolicyMismatch
from rl_trainer.run.agreement import check_agreement
from rl_trainer.trajectory import Group, Trajectory


def spec(**parts: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "stop": {"maxSteps": 50},
            **parts,
        }
    )


def group(version: int) -> Group:
    """One whose tokens are of this version."""
    member = Trajectory(
        tokens=np.arange(4, dtype=np.int32),
        mask=np.array([0, 0, 1, 1], dtype=bool),
        log_probs=np.full(2, -1.0, dtype=np.float32),
        versions=np.full(2, version, dtype=np.int32),
    )
    return Group.of(0, [member])


@pytest.mark.parametrize(
    ("parts", "step", "version"),
    [
        ({}, 0, 0),
        ({}, 4, 4),
        ({"weightSync": {"everySteps": 2}, "buffer": {"maxStaleness": 1}}, 4, 2),
        ({"sampler": {"topP": 0.9}}, 0, 0),
        ({"weightSync": {"maxMismatch": 1.9}}, 0, 0),
    ],
)
def test_who_differ_under_the_same_weights_end_the_run(parts: dict[str, Any], step: int, version: int):
    with pytest.raises(
        PolicyMismatch, match=rf"step {step + 1}: samplers \(engine torch\) and learner differ .* 2\.5 in"
    ):
        check_agreement(spec(**parts), step, [group(version)], {"mismatch_bounded": 2.5})
    check_agreement(spec(**parts), step, [group(version)], {"mismatch_bounded": 1.2})


@pytest.mark.parametrize(
    ("parts", "step", "versions"),
    [
        ({"weightSync": {"maxMismatch": None}}, 0, [0]),
        ({"buffer": {"maxStaleness": 1}}, 3, [3, 2]),  # a sampler's older weights
        (
            {"weightSync": {"everySteps": 2}, "buffer": {"maxStaleness": 1}},
            3,
            [1],
        ),  # the learner has trained since
        ({"sampler": {"topK": 5}}, 0, [0]),
        (
            {
                "algorithm": {"miniBatches": 2, "loss": {"proximal": "interpolated"}},
                "buffer": {"maxStaleness": 1},
            },
            0,
            [0],
        ),
    ],
)
def test_who_may_differ_are_left_alone(parts: dict[str, Any], step: int, versions: list[int]):
    check_agreement(spec(**parts), step, [group(version) for version in versions], {"mismatch_bounded": 2.5})


def test_a_batch_that_nothing_was_measured_of_is_left_alone():
    check_agreement(spec(), 0, [group(0)], {})
