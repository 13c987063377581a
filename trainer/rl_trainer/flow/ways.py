"""By which way a value travels from one process to another. No torch here: driver and buffer have none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from rl_trainer.flow.calls import INLINE_BYTES

Way = Literal["inline", "reference", "collective"]
"""In the call or its answer itself; in the object store; or, between ranks of a process group, point to point."""


def choose_way(size: int, tensors: bool = False, together: bool = False) -> Way:
    """How a value travels.

    Args:
        size: bytes, with those of all else that travels in the same call.
        tensors: whether it is made of tensors alone.
        together: whether sender and receiver are ranks of one process group.
    """
    if size <= INLINE_BYTES:
        return "inline"
    return "collective" if tensors and together else "reference"


def travelled(ways: Iterable[Way], size: int) -> dict[str, Any]:
    """What a span says of values that have travelled together, `size` bytes in all."""
    return {"way": " and ".join(sorted(set(ways))) or "inline", "bytes": size}
