"""Whether what learner and sampler keep on a device that they share can stay there while the other computes. Pure."""

from __future__ import annotations

from typing import Literal

from rl_api.sizes.memory import Device

Residency = Literal["swap", "keep"]


def residency(
    wanted: Literal["auto", "swap", "keep"], learner: int, sampler: int, device: Device
) -> Residency:
    """What `placement.residency` comes to: as it says, or with auto keep where both fit at once.

    Args:
        wanted: the field.
        learner: bytes of the learner on the device at its fullest: what it keeps, and what a step takes besides.
        sampler: bytes of the sampler there: weights (both sets of a CPU's), keys and values.
        device: what they share. Each of the two processes has its overhead.
    """
    if wanted != "auto":
        return wanted
    return "keep" if learner + sampler + 2 * device.overhead <= device.memory else "swap"
