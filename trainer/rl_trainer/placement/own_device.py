"""What the process that asks computes on."""

from __future__ import annotations

import ray


def own_device() -> str:
    """`cuda` where Ray has given this process a GPU, else `cpu`: a node's other GPUs are not its own."""
    return "cuda" if ray.get_gpu_ids() else "cpu"
