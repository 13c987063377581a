"""Who stays on a device that is shared: both where both fit, unless the run says otherwise."""

from __future__ import annotations

import pytest

from rl_api.sizes.memory import GB
from rl_api.sizes.residency import residency


def test_both_stay_where_both_fit():
    assert residency("auto", 80 * GB, 80 * GB, accelerated=True) == "keep"
    assert residency("auto", 80 * GB + 1, 80 * GB) == "swap"


@pytest.mark.parametrize(("needed", "memory"), [(None, 80 * GB), (80 * GB, None), (None, None)])
def test_where_nobody_knows_accelerators_are_left_and_memory_of_pods_is_kept(needed: float, memory: float):
    assert residency("auto", needed, memory, accelerated=True) == "swap"
    assert residency("auto", needed, memory) == "keep"


@pytest.mark.parametrize("wanted", ["swap", "keep"])
def test_what_the_run_says_counts(wanted: str):
    for size in (1, 1000 * GB, None):
        for accelerated in (False, True):
            assert residency(wanted, size, 80 * GB, accelerated=accelerated) == wanted
