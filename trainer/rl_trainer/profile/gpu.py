"""How busy this process's GPU is, as NVIDIA's or AMD's driver counts it: whoever uses it, also a process of an engine's."""

from __future__ import annotations

import torch

from rl_trainer.placement.own_device import own_device
from rl_trainer.profile.meters import BusyMeter


def gpu_meter() -> BusyMeter | None:
    """Of the GPU that Ray has given this process; None: it has none."""
    return BusyMeter(busy_share) if own_device() == "cuda" else None


def busy_share() -> float:
    """For which the first GPU of this process computed, of the last second or less. Makes no CUDA context.

    Raises where the driver's library is missing (`nvidia-ml-py`, which comes with vLLM), or does not tell, as of a slice of
    a GPU.
    """
    return torch.cuda.utilization(0) / 100.0
