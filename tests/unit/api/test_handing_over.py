from __future__ import annotations

from typing import Any

import pytest

from rl_api import RunSpec
from rl_api.handing_over import hands_over, keeps_devices, staying_sentence


def spec(placement: dict[str, Any], staleness: int = 0, **task: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum", **task},
            "algorithm": {"promptsPerStep": 8},
            "sampler": {"replicas": 2},
            "placement": {"mode": "hybrid", "sharedSamplers": 1, **placement},
            "buffer": {"maxStaleness": staleness},
            "stop": {"maxSteps": 10},
        }
    )


@pytest.mark.parametrize(
    ("placement", "staleness", "expected"),
    [
        ({}, 1, True),
        ({"partGroups": 2}, 0, True),
        ({}, 0, False),  # learners come between two steps
        ({"partGroups": 8}, 0, False),
        ({"handOverAt": 0.5}, 0, True),
        ({"handOver": "drain"}, 1, False),
        ({"mode": "collocated", "sharedSamplers": None}, 1, False),  # to whom?
        ({"mode": "disaggregated", "sharedSamplers": 0}, 1, False),
    ],
)
def test_who_hands_over(placement: dict[str, Any], staleness: int, expected: bool):
    run = spec(placement, staleness)
    assert hands_over(run) is expected
    assert keeps_devices(run) is expected
    assert staying_sentence(run) is None


@pytest.mark.parametrize(
    ("environment", "name"),
    [("tool-use", "calculator"), ("tool-use", "mine:Game"), ("gymnasium", "FrozenLake-v1")],
)
def test_dialogues_stay_and_the_run_says_so(environment: str, name: str):
    dialogue = {"environment": environment, "name": name, "maxTurns": 3}
    assert not keeps_devices(spec({}, 1, **dialogue))
    assert "placement.handOver is interrupt, but" in str(staying_sentence(spec({}, 1, **dialogue)))
    assert staying_sentence(spec({"handOver": "drain"}, 1, **dialogue)) is None
