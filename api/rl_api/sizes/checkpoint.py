"""Size of a checkpoint, and how long it takes to write. Pure."""

from __future__ import annotations

from rl_api.sizes.learner import MOMENTS, WEIGHT, LearnerLayout, critic_parameters, policy_parameters
from rl_api.sizes.shape import ModelShape


def checkpoint_bytes(shape: ModelShape, layout: LearnerLayout) -> int:
    """Bytes of one checkpoint: weights 4 per parameter (float32, LoRA's merged), AdamW's moments 8 per one that learns;
    with LoRA the adapters 4; with a critic its weights and moments.

    Groups that wait for training are left out: their size is the task's.
    """
    weights, trained = policy_parameters(shape, layout)
    size = WEIGHT * weights + MOMENTS * trained
    if layout.critic:
        weights, trained = critic_parameters(shape, layout)
        size += WEIGHT * weights + MOMENTS * trained
    return size


def checkpoint_seconds(size: int, bandwidth: float) -> float:
    """Seconds to write `size` bytes at `bandwidth` bytes/s, of all who write together; `bandwidth` > 0."""
    return size / bandwidth
