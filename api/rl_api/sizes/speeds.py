"""How fast a device is, as far as its name says: what it computes, reads, and sends. Pure.

Figures are of vendors' data sheets: dense products in bfloat16 (of the T4 and V100, which have none, float16), and bytes of
its own memory, both in a second, of the fastest one of that name. What a run gets of it is less (`rl_api.planner.prior`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from rl_api.profile import PoolSpec
from rl_api.roles import ResourcesSpec
from rl_api.run import RunSpec
from rl_api.sizes.devices import texts

_SHEETS: Final = {
    "T4": (65, 0.32),
    "V100": (125, 0.9),
    "A10": (125, 0.6),
    "A10G": (70, 0.6),
    "A30": (165, 0.933),
    "A40": (150, 0.696),
    "A100": (312, 2.04),
    "A800": (312, 2.04),
    "L4": (121, 0.3),
    "L40": (181, 0.864),
    "L40S": (362, 0.864),
    "H20": (148, 4.0),
    "H100": (989, 3.35),
    "H800": (989, 3.35),
    "H200": (989, 4.8),
    "GH200": (989, 4.9),
    "B200": (2250, 8.0),
    "GB200": (2500, 8.0),
    "MI300X": (1307, 5.3),
}
"""Teraoperations and terabytes in a second."""
_NAME: Final = re.compile(rf"(?<![A-Z0-9])({'|'.join(_SHEETS)})(?![A-Z0-9])", re.IGNORECASE)
_PART: Final = re.compile(r"(?<![A-Z])MIG(?![A-Z])|[0-9]g\.[0-9]+gb", re.IGNORECASE)


@dataclass(frozen=True)
class Speed:
    """Of one device, in a second.

    Attributes:
        operations: floating-point operations of products with matrices.
        memory: bytes of its own memory.
        link: bytes from it to another device.
        host: bytes between it and main memory; of a processor, what one core copies.
        accelerator: whether it is one.
        name: as the pool says it; None: nobody does, and the numbers are those of a common one, good for ratios alone.
    """

    operations: float
    memory: float
    link: float
    host: float
    accelerator: bool = True
    name: str | None = None


ACCELERATOR: Final = Speed(989e12, 3.35e12, 50e9, 25e9)
"""Where nobody says which: an H100. Its link is a network card of 400 Gb/s for each, as between its nodes; PCI Express of
generation 4 moves 25 GB/s each way."""

CORE: Final = Speed(50e9, 10e9, 1e9, 1e9, accelerator=False)
"""A core of a server's processor: 8 float32 numbers in a vector, two products and sums a cycle at some 3 GHz are 96 G, of
which wide loads leave half; one core alone reads some 10 GB/s, and sends 1 GB/s through shared memory."""


def accelerator_speed(pool: PoolSpec) -> Speed:
    """Of an accelerator of a pool; of a part of one (MIG), or one whose name is not known, that of a common one."""
    found = list(texts(pool))
    if any(_PART.search(text) for text in found):
        return ACCELERATOR
    for text in found:
        if named := _NAME.search(text):
            name = named[1].upper()
            operations, memory = _SHEETS[name]
            return replace(ACCELERATOR, operations=operations * 1e12, memory=memory * 1e12, name=name)
    return ACCELERATOR


def cores(count: int) -> Speed:
    """Of a process with `count` threads, a core each: they share what leaves it."""
    return replace(CORE, operations=CORE.operations * count, memory=CORE.memory * count)


def speeds_of(spec: RunSpec) -> tuple[Speed, Speed]:
    """Of a learner's device and a sampler's, by the spec alone: accelerators of which nobody says which, or cores."""
    learner, sampler = spec.learner, spec.sampler
    return (
        ACCELERATOR if _accelerators(learner.resources) else cores(learner.threads),
        ACCELERATOR
        if sampler.engine == "vllm" or _accelerators(sampler.resources)
        else cores(sampler.threads),
    )


def _accelerators(resources: ResourcesSpec | None) -> int:
    return (resources.accelerators or 0) if resources is not None else 0
