from __future__ import annotations

from typing import Any

import pytest

from rl_api import RunSpec
from rl_api.parts import needs_whole_batch, part_groups, parts_sentence


def spec(algorithm: dict[str, Any], part: int | None = 2) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"promptsPerStep": 8, **algorithm},
            "placement": {"partGroups": part},
            "stop": {"maxSteps": 10},
        }
    )


@pytest.mark.parametrize("estimator", ["groupMean", "leaveOneOut", "maxRl"])
@pytest.mark.parametrize(("part", "groups"), [(None, 8), (1, 1), (3, 3), (8, 8), (9, 8)])
def test_groups_of_a_part(estimator: str, part: int | None, groups: int):
    run = spec({"advantage": {"estimator": estimator}}, part)
    assert part_groups(run) == groups
    assert parts_sentence(run) is None


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (
            {"name": "reinforce_pp"},
            "algorithm.advantage.estimator batchNormalized normalises advantages over the whole batch",
        ),
        ({"name": "ppo"}, "algorithm.advantage.estimator gae whitens advantages over the whole batch"),
        (
            {"miniBatches": 4},
            "algorithm.miniBatches is 4, and mini-batches are drawn from the whole batch",
        ),
        ({"epochs": 2}, "algorithm.epochs is 2, and each of them is a pass over the whole batch"),
    ],
)
def test_what_needs_the_whole_batch(algorithm: dict[str, Any], reason: str):
    run = spec(algorithm)
    assert needs_whole_batch(run) == reason
    assert part_groups(run) == 8
    assert (
        parts_sentence(run)
        == f"placement.partGroups is 2, but a part is the whole step of 8 groups: {reason}"
    )
    for part in (None, 8):
        assert parts_sentence(spec(algorithm, part)) is None
