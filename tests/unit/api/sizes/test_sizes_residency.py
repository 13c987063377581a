"""Who stays on a device that is shared: both where both fit, unless the run says otherwise."""

from __future__ import annotations

import pytest

from rl_api.sizes.memory import ACCELERATOR_OVERHEAD, GB, PROCESS_OVERHEAD, Device
from rl_api.sizes.residency import residency


@pytest.mark.parametrize(
    ("device", "overhead"),
    [(Device(80 * GB), ACCELERATOR_OVERHEAD), (Device(8 * GB, False), PROCESS_OVERHEAD)],
)
def test_both_stay_where_both_fit_with_an_overhead_each(device: Device, overhead: int):
    room = device.memory - 2 * overhead
    assert residency("auto", room - GB, GB, device) == "keep"
    assert residency("auto", room - GB, GB + 1, device) == "swap"


@pytest.mark.parametrize("wanted", ["swap", "keep"])
def test_what_the_run_says_counts(wanted: str):
    for size in (1, 1000 * GB):
        assert residency(wanted, size, size, Device(80 * GB)) == wanted
