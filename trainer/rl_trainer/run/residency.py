"""What `placement.residency: auto` is in a run whose learners have GPUs, by what the model needs of one of them; and whether
versions of the weights that lie there fit too."""

from __future__ import annotations

from contextlib import suppress

from rl_api import RunSpec
from rl_api.errors import InvalidConfig, ModelError
from rl_api.sizes.memory import Device
from rl_api.sizes.residency import residency
from rl_api.sizes.run_plan import Place, plan_run
from rl_api.sizes.shape import ModelShape
from rl_api.sizes.shared import SharedDevice
from rl_trainer.learner.group import Learners


def with_residency(spec: RunSpec, shape: ModelShape | None, learners: Learners) -> RunSpec:
    """The run with swap or keep in place of auto, where samplers share learners' GPUs: as `rltrain plan` says for devices of
    this size, and swap where it says nothing. `shape`: of the model; None: of a family that is not known.

    Raises as `Handle.wait` does, as learners are asked how large their devices are; InvalidConfig where versions of the
    weights are to lie there (`weightSync.transport: ipc`) and do not fit: whoever takes the device next would lack memory.
    """
    auto, ipc = spec.placement.residency == "auto", spec.weight_sync.transport == "ipc"
    if not spec.shared_samplers or not (auto or ipc):
        return spec
    found = residency(spec.placement.residency, None, None, accelerated=True)
    if shape is not None:
        with suppress(ModelError):
            shared = planned_device(spec, shape, learners.device_memory())
            if ipc and shared.misfit is not None:
                raise InvalidConfig(shared.misfit)
            found = shared.residency
    placement = spec.placement.model_copy(update={"residency": found})
    return spec.model_copy(update={"placement": placement})


def planned_device(spec: RunSpec, shape: ModelShape, memory: int) -> SharedDevice:
    """What the plan of a run says for accelerators of `memory` bytes. Raises as `plan_run`."""
    sampler, device = spec.sampler, Device(memory)
    own = (sampler.replicas - spec.shared_samplers) * sampler.pods_per_replica
    plan = plan_run(
        spec,
        shape,
        Place(spec.learner.replicas, spec.learner.ranks_per_replica, device),
        Place(own, sampler.devices_per_pod, device),
    )
    assert plan.shared is not None, "samplers share"
    return plan.shared
