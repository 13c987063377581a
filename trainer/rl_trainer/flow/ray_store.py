"""Ray's object store behind three functions, for those who know no Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from rl_trainer.flow.node_checks import Wanted, check_once, mark_of
from rl_trainer.flow.shared_marks import marks_of
from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages, places_in_store, recall_store_pages

# What this process has put is here already, and where it is only saves time.
_AT_ONCE = 1.0
# Blocks of a few versions of the largest models.
_MOST_PLACES = 1 << 16


class RayStore:
    """Objects by reference; of what was read or written no more than `KEPT_BYTES` stay in this process's resident set.

    Attributes:
        put_bytes: of blocks of weights that were put there.
        taken_bytes: of those that were taken.
    """

    def __init__(self) -> None:
        self.put_bytes = self.taken_bytes = 0
        self._places = _Places()

    def put(self, value: Any) -> ray.ObjectRef[Any]:
        """Keeps a value as long as somebody has its reference. One caller at a time."""
        self._places.recall()
        reference = ray.put(value)
        size = _bytes(value)
        self.put_bytes += size
        if forget_store_pages(keep=KEPT_BYTES) or self._places.known:
            self._places.add(_place_of(reference), size)
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

    def watch(self, handle: ray.ObjectRef[Any]) -> Callable[[], bool]:
        """See `Store.watch`; of what this process has put, as Ray counts who has its reference."""
        return partial(_is_held, handle.hex())

    def check(
        self, handles: Sequence[ray.ObjectRef[Any]], blocks: Sequence[Any], check: Callable[[Any], None]
    ) -> None:
        """See `Store.check`; what a mark of this node's says is believed (`node_checks.py`)."""
        places = places_in_store([one.block for one in blocks])
        wanted = [
            Wanted(one.block, mark_of(handle.hex(), one.checksum, place), partial(check, one))
            for handle, one, place in zip(handles, blocks, places, strict=True)
        ]
        check_once(wanted, marks_of(ray.get_runtime_context().get_node_id()))


class _Places:
    """Where objects were put one after the other: versions take turns in the same memory, whose pages this process has
    forgotten in the meantime. All of this is a guess, on which nothing but time depends.
    """

    def __init__(self) -> None:
        # Of a place the one that was put to after it, and its bytes.
        self._next: dict[int, tuple[int, int]] = {}
        self._last = 0

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return self._last != 0

    def recall(self) -> None:
        """Has the pages of the place that is likely to be put to next."""
        if found := self._next.get(self._last):
            recall_store_pages(*found)

    def add(self, place: int, size: int) -> None:
        """Something of `size` bytes has been put to `place`; 0: it is not known where."""
        if place and self._last:
            if len(self._next) >= _MOST_PLACES:
                self._next.clear()
            self._next[self._last] = place, size
        self._last = place


def _is_held(key: str) -> bool:
    """Whether a process has a reference to an object that this one has put, also one on its way; True where Ray does not
    say."""
    try:
        return key in ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    except Exception:  # none of this is Ray's interface
        return True


def _place_of(reference: ray.ObjectRef[Any]) -> int:
    """Address of the array of a block of weights; 0 of other things, and where Ray does not say."""
    try:
        array = getattr(ray.get(reference, timeout=_AT_ONCE), "block", None)
    except RayError:
        return 0
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else 0


def _bytes(value: Any) -> int:
    """Of the arrays of a block of weights, or of changes of some; of other things, which are small, 0."""
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if (found := getattr(value, "nbytes", None)) is not None:
        return int(found)
    return sum(map(_bytes, getattr(value, "__dict__", {}).values()))
