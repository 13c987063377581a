"""What an error says: something of the policy, or only of where it was to be read, measured or loaded. Pure."""

from __future__ import annotations

import ray.exceptions
import torch

from rl_api.errors import DeadlineExceeded, Unavailable

_PLACES = (
    DeadlineExceeded,
    Unavailable,
    OSError,
    MemoryError,
    torch.OutOfMemoryError,
    ray.exceptions.RayError,
)


def passes(error: BaseException) -> bool:
    """Whether another try may go well with the same policy: no space, memory, bucket or process is a verdict about it."""
    return isinstance(error, _PLACES) or isinstance(error.__cause__, _PLACES)
