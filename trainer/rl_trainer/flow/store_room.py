"""Whether the object store of this node has room for versions that engines compute with where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy.typing as npt
import ray

from rl_trainer.flow.store_pages import use_store_pages

# Beside what each sampler of a node may still hold: one that is put or fetched, one that waits to be loaded, and the rest.
_MORE: Final = 3


def node_store_bytes() -> float:
    """Bytes of the object store of this node; 0: Ray does not say."""
    try:
        here = ray.get_runtime_context().get_node_id()
        found = [node["Resources"] for node in ray.nodes() if node["NodeID"] == here]
    except Exception:  # Ray has no class for all that may be wrong with a head; then versions are copied
        return 0.0
    return float(found[0].get("object_store_memory", 0.0)) if found else 0.0


class StoreRoom:
    """Implements `Lends`: if every sampler may hold another version, and there is still room for new ones.

    Ray never takes the memory of an object away that somebody reads: it would write new ones to the disk instead.
    """

    def __init__(self, samplers: int, look: Callable[[], float] = node_store_bytes) -> None:
        """`samplers`: that may be on this node; `look`: bytes of its store, asked for once, when it matters."""
        self._versions, self._look = samplers + _MORE, look

    def __call__(self, arrays: Sequence[npt.NDArray[Any]]) -> bool:
        """Of versions as large as this one."""
        found = self._versions * sum(one.nbytes for one in arrays) <= self._bytes
        for one in arrays if found else ():
            use_store_pages(one)
        return found

    @cached_property
    def _bytes(self) -> float:
        return self._look()
