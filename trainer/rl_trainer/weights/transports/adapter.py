"""Weights of runs with LoRA: the base once, and of each version the adapter's A and B alone, which the sampler merges.

What the engine gets is what a learner publishes that merges them itself, so every engine takes it. The base stays in the
store, where all samplers of a node read the same copy of it; each has merged weights in memory of its own beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from rl_trainer.weights.merged import MergedTensors
from rl_trainer.weights.payload import BLOCK_BYTES, pack_weights, shapes_of, unpack_weights
from rl_trainer.weights.transports.base import Offer, Store
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver, take_blocks, take_part
from rl_trainer.weights.transports.publication import Publication


class AdapterPublisher:
    """Implements `Publisher`: the base with the first version that has adapters, adapters ever after.

    Before there are any, in a warm start, all weights.
    """

    def __init__(self, store: Store, rank: int, limit: int = BLOCK_BYTES):
        """`limit`: bytes of a block at most."""
        self._store, self._rank, self._limit = store, rank, limit
        self._whole = StorePublisher(store, rank, limit)
        self._base: Publication | None = None

    def publish(self, offer: Offer, version: int) -> Publication | None:
        """See `Publisher.publish`."""
        adapter = offer.adapter()
        if adapter is None:
            return self._whole.publish(offer, version)
        if self._base is None:
            self._base = self._whole.publish(Offer(adapter.base), version)
        source = adapter.tensors()
        if self._rank:
            self._base = self._base or Publication(version, "objectStore", [])
            take_part(source)
            return None
        first = self._store.put((adapter.adapted, adapter.dtype))
        blocks = list(map(self._store.put, pack_weights(source, version, self._limit)))
        return Publication(version, "adapter", [first, *blocks], base=self._base)


class AdapterReceiver:
    """Implements `Receiver`: merged weights in memory of its own, the base's in the store."""

    def __init__(self, store: Store, place: str):
        """`place`: who receives and where, for what it says when nothing comes."""
        self._store, self._place = store, place
        self._whole = StoreReceiver(store, place)
        self._base: tuple[int, Mapping[str, Tensor]] | None = None
        self._merged: dict[str, Tensor] = {}

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """See `Receiver.receive`; the next call changes the tensors."""
        base = publication.base
        if base is None:
            return self._whole.receive(publication, timeout)
        deadline = time.monotonic() + timeout
        if self._base is None or self._base[0] != base.version:
            self._base = base.version, self._whole.receive(base, timeout)
        left = deadline - time.monotonic()
        first, *blocks = take_blocks(self._store, publication, self._place, timeout, left)
        (adapted, dtype), weights, adapter = first, self._base[1], unpack_weights(blocks)
        shapes = shapes_of(weights)
        for name, change in adapted.items():
            if name not in self._merged:
                self._merged[name] = torch.empty(shapes[name], dtype=dtype)
            change.merge(weights[name], adapter, self._merged[name])
        return MergedTensors(weights, self._merged, shapes)
