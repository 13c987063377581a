"""How a sampler opens its engine: here or over several pods, and on a shared device in its turn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from rl_api import RunSpec
from rl_trainer.flow.turns import device_for_loading
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.own_device import own_device
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.endpoint_requests import EndpointOptions
from rl_trainer.rollout.engines.vllm_needs import VllmOptions
from rl_trainer.rollout.pods import open_over_pods


def open_engine(
    spec: RunSpec,
    rank: int,
    model: SharedFolder,
    folder: Path,
    leases: Any,
    *,
    other_pods: Sequence[int],
    swaps: bool,
) -> Engine:
    """The engine of sampler `rank`.

    Args:
        spec: the run.
        rank: of the sampler.
        model: as it comes to the engine's other pods.
        folder: the same, as it is here.
        leases: the actor that keeps those of shared devices.
        other_pods: bundles of its placement group in which the rest of it is.
        swaps: when it has loaded on a shared device it moves its tensors out.
    """
    slots, dtype = spec.sampler.max_sequences, getattr(torch, spec.model.dtype)
    options = VllmOptions.of(spec, secrets.randbits(31))

    def open_here(options: VllmOptions) -> Engine:
        return create_engine(
            folder,
            kind=spec.sampler.engine,
            slots=slots,
            dtype=dtype,
            device=own_device(),
            options=options,
            endpoint=EndpointOptions.of(spec),
        )

    if other_pods:
        return open_over_pods(f"sampler {rank}", other_pods, model, slots, dtype, options, open_here)
    shares = rank < spec.shared_samplers
    with device_for_loading(leases, rank) if shares else nullcontext():
        engine = open_here(options)
        if swaps:
            engine.offload()
    return engine
