"""What `placement.residency: auto` is in a run whose learners have GPUs, by what the model needs of one of them."""

from __future__ import annotations

from pathlib import Path

from rl_api import RunSpec
from rl_api.errors import ModelError
from rl_api.sizes.memory import Device
from rl_api.sizes.residency import Residency, residency
from rl_api.sizes.run_plan import Place, plan_run
from rl_api.sizes.shape import ModelShape, model_shape
from rl_trainer.learner.group import Learners
from rl_trainer.model.config import read_json


def with_residency(spec: RunSpec, model: Path, learners: Learners) -> RunSpec:
    """The run with swap or keep in place of auto, where samplers share learners' GPUs: as `rltrain plan` says for devices of
    this size, and swap where the family of the model is not known.

    Raises as `Handle.wait` does: learners are asked how large their devices are.
    """
    if spec.placement.residency != "auto" or not spec.shared_samplers:
        return spec
    try:
        shape = model_shape(read_json(model / "config.json"), str(model))
        found = planned_residency(spec, shape, learners.device_memory())
    except ModelError:
        found = residency("auto", None, None, accelerated=True)
    placement = spec.placement.model_copy(update={"residency": found})
    return spec.model_copy(update={"placement": placement})


def planned_residency(spec: RunSpec, shape: ModelShape, memory: int) -> Residency:
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
    return plan.shared.residency
