"""What residency auto is in a run on GPUs: what its plan says, and swap where nobody knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from model_configs import MODELS

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_api.sizes.memory import GB, Device
from rl_api.sizes.run_plan import Place, plan_run
from rl_api.sizes.shape import model_shape
from rl_trainer.run.residency import with_residency

CONFIG = MODELS["Qwen2.5-0.5B"]


def run(**parts: Any) -> RunSpec:
    document = {
        "model": {"source": "a/b", "dtype": "bfloat16"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "sampler": {"engine": "vllm", "replicas": 2, "maxNewTokens": 1024, "gpuMemoryUtilization": 0.3},
        "learner": {"replicas": 2, "tokensPerMicroBatch": 4096},
        "placement": {"mode": "collocated"},
    }
    return RunSpec.model_validate(document | parts, by_alias=True, by_name=False)


def asked(size: int) -> Any:
    return SimpleNamespace(device_memory=lambda: size)


def nobody() -> Any:
    def refuse() -> int:
        raise AssertionError("nobody is to be asked")

    return SimpleNamespace(device_memory=refuse)


@pytest.mark.parametrize(("size", "outcome"), [(80 * GB, "keep"), (12 * GB, "swap")])
def test_auto_is_what_the_plan_says_for_a_gpu_of_this_size(size: int, outcome: str) -> None:
    spec, place = run(), Place(2, 1, Device(size))
    plan = plan_run(spec, model_shape(CONFIG), place, Place(0, 1, Device(size)))
    assert plan.shared is not None
    found = with_residency(spec, model_shape(CONFIG), asked(size))
    assert found.placement.residency == plan.shared.residency == outcome
    assert found.model_copy(update={"placement": spec.placement}) == spec, "nothing else changes"


def test_of_a_model_that_nobody_knows_auto_is_swap() -> None:
    found = with_residency(run(), None, nobody())
    assert found.placement.residency == "swap"


def test_what_the_run_says_counts_and_who_shares_nothing_is_not_asked() -> None:
    placements = ({"mode": "collocated", "residency": "keep"}, {"mode": "disaggregated"})
    for placement in placements:
        spec = run(placement=placement)
        assert with_residency(spec, model_shape(CONFIG), nobody()) == spec


@pytest.mark.parametrize("residency", ["auto", "keep", "swap"])
def test_versions_beside_them_that_do_not_fit_are_refused_as_the_plan_does(residency: str) -> None:
    placement = {"mode": "collocated", "residency": residency}
    sizes = [size * GB // 4 for size in range(24, 320)]
    shape = model_shape(CONFIG)

    def misfit(spec: RunSpec, size: int) -> str | None:
        plan = plan_run(spec, shape, Place(2, 1, Device(size)), Place(0, 1, Device(size)))
        assert plan.shared is not None
        return plan.shared.misfit

    by_store, by_ipc = (
        run(placement=placement, weightSync={"transport": transport}) for transport in ("objectStore", "ipc")
    )
    small = next(size for size in sizes if misfit(by_store, size) is None and misfit(by_ipc, size))
    with pytest.raises(InvalidConfig) as caught:
        with_residency(by_ipc, shape, asked(small))
    assert str(caught.value) == misfit(by_ipc, small)
    with_residency(by_store, shape, asked(small))
    large = next(size for size in sizes if misfit(by_ipc, size) is None)
    with_residency(by_ipc, shape, asked(large))
    assert with_residency(by_ipc, None, nobody()).weight_sync.transport == "ipc"
