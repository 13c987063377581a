"""Memory of a device on which a learner process and a sampler take turns. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rl_api.roles import PlacementSpec
from rl_api.sizes.fit import sampler_misfit
from rl_api.sizes.learner import kept_bytes
from rl_api.sizes.memory import Device, Parts, gigabytes
from rl_api.sizes.residency import Residency, residency
from rl_api.sizes.sampler import SamplerLayout
from rl_api.sizes.shape import ModelShape


@dataclass(frozen=True)
class SharedDevice:
    """Devices that some samplers share with learner processes.

    Attributes:
        samplers: so many share, one on each of the first learner processes' devices.
        residency: what becomes of a role's tensors while the other computes: keep (they stay) or swap (they are moved out).
        keep, swap: bytes of one device with the one and with the other.
        moved: of each pod with accelerators, bytes of its main memory for what is moved out; 0 with keep, and without
            accelerators, where that goes to a file.
        misfit: a sentence where both do not fit, with the smallest change that would do; None: they fit, or how large the
            device is is not known.
    """

    samplers: int
    residency: Residency
    keep: int
    swap: int
    moved: int
    misfit: str | None

    @property
    def total(self) -> int:
        """Bytes of one device."""
        return self.keep if self.residency == "keep" else self.swap


def shared_device(
    shape: ModelShape,
    placement: PlacementSpec,
    learner: Parts,
    sampler: Parts,
    layout: SamplerLayout,
    device: Device | None,
    *,
    samplers: int,
    per_pod: int,
    published: int = 0,
) -> SharedDevice:
    """What both roles need of one device that they share.

    Where both stay that is the sum; where one is moved out, the larger role and the other's process, which stays. What is
    published there stays in any case.

    Args:
        shape: of the model.
        placement: of the run.
        learner, sampler: each one's bytes on the device, with the overhead of its process.
        layout: of the sampler.
        device: None: its size is not known.
        samplers: that share.
        per_pod: accelerators of a learner's pod, 0: it has none.
        published: bytes of versions of the weights that lie there for samplers to copy.
    """
    resident = replace(learner, overhead=learner.overhead + published)
    keep = resident.total + sampler.total
    swap = max(resident.total + sampler.overhead, sampler.total + resident.overhead)
    memory = None if device is None else device.memory
    found = residency(placement.residency, keep, memory, accelerated=per_pod > 0)
    # Keys and values of vLLM are not moved but dropped.
    out = kept_bytes(learner) * per_pod + sampler.weights * min(samplers, per_pod)
    one = SharedDevice(samplers, found, keep, swap, out if found == "swap" else 0, None)
    if device is None:
        return one
    stored = None
    if published:
        stored = shared_device(
            shape, placement, learner, sampler, layout, device, samplers=samplers, per_pod=per_pod
        )
    return replace(one, misfit=_misfit(shape, one, resident, layout, device, stored))


def _misfit(
    shape: ModelShape,
    one: SharedDevice,
    learner: Parts,
    layout: SamplerLayout,
    device: Device,
    stored: SharedDevice | None,
) -> str | None:
    """`stored`: the same without what is published there; None: nothing is."""
    if one.total <= device.memory:
        return None
    found = f"a learner and a sampler that share one {device.word} need {gigabytes(one.total)} of it with residency "
    change = "take larger devices"
    if stored is None:  # else samplers with devices of their own could not map what is published
        change = f"set placement.mode: disaggregated, or {change}"
    if stored is not None and stored.misfit is None:
        change = f"set weightSync.transport: objectStore, with which they need {gigabytes(stored.total)}"
    elif one.residency == "keep" and one.swap <= device.memory:
        change = f"set placement.residency: swap, with which they need {gigabytes(one.swap)}"
    elif share := _share(shape, one, learner, layout, device):
        change = f"set sampler.gpuMemoryUtilization: {share:g}"
    return f"{found}{one.residency}; {change}"


def _share(
    shape: ModelShape, one: SharedDevice, learner: Parts, layout: SamplerLayout, device: Device
) -> float | None:
    """The largest share of the device with which vLLM leaves room for the learner, in hundredths; None: there is none."""
    if layout.engine != "vllm" or not device.accelerator:
        return None
    beside = learner.total if one.residency == "keep" else learner.overhead
    share = math.floor((device.memory - beside) / device.memory * 100) / 100
    if share <= 0 or learner.total + device.overhead > device.memory:
        return None
    fits = sampler_misfit(shape, replace(layout, utilization=share), device) is None
    return share if fits and share < layout.utilization else None
