"""Whether what learner and sampler keep on a device that they share can stay there while the other computes. Pure.

The one place that decides what `placement.residency: auto` is: for `rltrain plan`, the planner and the trainer.
"""

from __future__ import annotations

from typing import Literal

Residency = Literal["swap", "keep"]
Wanted = Literal["auto", "swap", "keep"]


def residency(
    wanted: Wanted, needed: float | None, memory: float | None, *, accelerated: bool = False
) -> Residency:
    """What `placement.residency` comes to: as it says, or with auto keep where both fit at once.

    Args:
        wanted: the field.
        needed: bytes that both take of the device at once, at their fullest and each with the overhead of its process; None:
            not known.
        memory: bytes of the device; None: not known.
        accelerated: what auto is where one of the two is not known: on accelerators swap, as a sampler takes all of their
            memory that it finds, else keep.
    """
    if wanted != "auto":
        return wanted
    if needed is None or memory is None:
        return "swap" if accelerated else "keep"
    return "keep" if needed <= memory else "swap"
