"""What the process that asks computes on, and where."""

from __future__ import annotations

import ray


def own_device() -> str:
    """`cuda` where Ray has given this process a GPU, else `cpu`: a node's other GPUs are not its own."""
    return "cuda" if ray.get_gpu_ids() else "cpu"


def own_node() -> str:
    """Ray's id of this process's node."""
    found: str = ray.get_runtime_context().get_node_id()
    return found
