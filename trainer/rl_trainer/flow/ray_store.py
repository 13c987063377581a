"""Ray's object store behind two functions, for those who know no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages


class RayStore:
    """Objects by reference; of what was read or written no more than `KEPT_BYTES` stay in this process's resident set.

    Attributes:
        put_bytes: of blocks of weights that were put there.
        taken_bytes: of those that were taken.
    """

    def __init__(self) -> None:
        self.put_bytes = self.taken_bytes = 0

    def put(self, value: Any) -> ray.ObjectRef[Any]:
        """Keeps a value as long as somebody has its reference."""
        reference = ray.put(value)
        self.put_bytes += _bytes(value)
        forget_store_pages(keep=KEPT_BYTES)
        return reference

    def get(self, handles: Sequence[ray.ObjectRef[Any]], timeout: float) -> list[Any]:
        """The values; arrays in them are the store's memory, read-only.

        Raises TimeoutError when not all of them are on this node after `timeout` seconds; Ray's own errors for lost ones.
        """
        forget_store_pages(keep=KEPT_BYTES)  # of what was read before
        try:
            found: list[Any] = ray.get(list(handles), timeout=timeout)
        except GetTimeoutError:
            raise TimeoutError(f"{len(handles)} objects, {timeout:.0f} s") from None
        self.taken_bytes += sum(map(_bytes, found))
        return found


def _bytes(value: Any) -> int:
    """Of the arrays of a block of weights, or of changes of some; of other things, which are small, 0."""
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return sum(int(getattr(part, "nbytes", 0)) for part in getattr(value, "__dict__", {}).values())
