"""How fast devices are, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from rl_api.profile import PoolSpec
from rl_api.sizes.speeds import ACCELERATOR, CORE, accelerator_speed, cores


def pool(product: str = "", **fields: Any) -> PoolSpec:
    selector = {"nvidia.com/gpu.product": product} if product else {}
    return PoolSpec.model_validate(
        {"name": "gpus", "acceleratorResource": "nvidia.com/gpu", "nodeSelector": selector, **fields}
    )


@pytest.mark.parametrize(
    ("product", "name", "operations"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100", 989e12),
        ("NVIDIA-A100-SXM4-80GB", "A100", 312e12),
        ("NVIDIA-A10G", "A10G", 70e12),
        ("NVIDIA-A10", "A10", 125e12),
        ("NVIDIA-L4", "L4", 121e12),
        ("NVIDIA-L40S", "L40S", 362e12),
        ("Tesla-T4", "T4", 65e12),
        ("NVIDIA-GH200-480GB", "GH200", 989e12),
    ],
)
def test_a_name_says_what_a_device_computes(product: str, name: str, operations: float) -> None:
    found = accelerator_speed(pool(product))
    assert (found.name, found.operations) == (name, operations)


@pytest.mark.parametrize(
    "named",
    [
        pool(),
        pool("NVIDIA-Something-New"),
        pool("NVIDIA-H100-80GB-HBM3", acceleratorResource="nvidia.com/mig-1g.10gb"),
        pool("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"),
    ],
)
def test_of_a_part_or_an_unknown_one_only_ratios_are_known(named: PoolSpec) -> None:
    assert accelerator_speed(named) == ACCELERATOR
    assert ACCELERATOR.name is None


def test_threads_are_cores() -> None:
    assert cores(4).operations == 4 * CORE.operations
    assert cores(4).memory == 4 * CORE.memory
    assert not cores(4).accelerator
