from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_profile, refused

LIMITED = make_profile(
    default=True,
    pools=[GPU_POOLS[0] | {"limits": {"maxReplicas": 3, "maxAccelerators": 6}}, {"name": "cpu"}],
    limits={"maxSamplers": 4, "maxLearners": 2, "maxAccelerators": 7},
)


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            {"sampler": {"replicas": 5, "pools": ["cpu"]}},
            ["spec.sampler.replicas: found 5, allowed: at most 4, the limit of profile shared"],
        ),
        (
            {"learner": {"replicas": 4, "pools": ["cpu"]}},
            ["spec.learner.replicas: found 4, allowed: at most 2, the limit of profile shared"],
        ),
        (
            {"sampler": {"replicas": 4, "tensorParallelSize": 2}},
            [
                "found 9 accelerators (learner: 1 * 1, sampler: 4 * 2), allowed: at most 7, the limit of profile",
                "spec.sampler.replicas: found 4, allowed: at most 3, the limit of pool h100",
                "found 9 accelerators of pool h100 (learner: 1 * 1, sampler: 4 * 2), allowed: at most 6",
            ],
        ),
    ],
)
def test_limits(spec: dict[str, Any], sentences: list[str]) -> None:
    found = refused(spec, LIMITED)
    assert found.reason == "LimitExceeded"
    for sentence in sentences:
        assert sentence in found.message


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"sampler": {"pools": ["tpu"]}},
            "spec.sampler.pools[0]: found 'tpu', allowed: a pool of profile shared: h100, cpu",
        ),
        ({"learner": {"pools": ["tpu"]}}, "spec.learner.pools[0]: found 'tpu'"),
        (
            {"sampler": {"pools": ["cpu"], "resources": {"accelerators": 2}}},
            "spec.sampler.resources.accelerators: found 2, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            {"sampler": {"tensorParallelSize": 16}},
            "spec.sampler.tensorParallelSize: found 16, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"engine": "vllm", "resources": {"accelerators": 0}}},
            "spec.sampler.resources.accelerators: found 0, allowed: at least 1 with engine vllm",
        ),
        ({"server": {"port": 8265}}, "spec.server.port: found 8265, allowed: a port that Ray does not use"),
        ({"checkpoint": {"storage": None}}, "spec.checkpoint.storage: missing, required on a cluster"),
    ],
)
def test_what_cannot_be_placed(spec: dict[str, Any], sentence: str) -> None:
    found = refused(spec, make_profile(default=True, pools=GPU_POOLS))
    assert found.reason == "InvalidSpec"
    assert sentence in found.message
