"""Weights as what changed since the version before: for slow networks, and steps that change little.

The first version goes through the store whole. Of each later one the learner puts into the store what changed since the one
before (`weights/delta.py`), and a sampler that has that one applies it to its own copy; one that comes later, or has missed
some, begins with the last whole version and applies what followed. When that has become as many bytes as a whole version,
the learner puts one there beside what changed.

Memory: a copy of the last published version in the learner's first process and in each sampler's, on the host; in the store
a whole version, and as many bytes of changes at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_api.errors import ModelError
from rl_trainer.weights.delta import BlockDelta, apply, encode, width_of
from rl_trainer.weights.payload import BLOCK_BYTES, WeightsBlock, pack_weights, unpack_weights
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.transports.base import Offer, Store
from rl_trainer.weights.transports.object_store import take_blocks, take_part
from rl_trainer.weights.transports.publication import Publication

# A chain of so many versions is as long as one may be: each is a message within the next one's.
LONGEST_CHAIN = 64


class DeltaPublisher:
    """Implements `Publisher`: what changed since the last version."""

    def __init__(self, store: Store, rank: int, limit: int = BLOCK_BYTES):
        """`limit`: bytes of a block at most."""
        self._store, self._rank, self._limit = store, rank, limit
        self._held: list[WeightsBlock] | None = None  # of the last version; None: there is none to begin from
        self._last: Publication | None = None
        self._chain, self._chain_bytes = 0, 0  # since the last whole version
        self.sent = 0
        """Bytes of weights that the last version put into the store."""

    def publish(self, offer: Offer, version: int) -> Publication | None:
        """See `Publisher.publish`."""
        source = offer.weights()
        if self._rank:
            take_part(source)
            return None
        held, last, self._held = self._held, self._last, None  # where this fails, the next version goes whole
        if held is None or last is None:
            held = list(pack_weights(source, version, self._limit))
            publication = self._whole(version, held)
            self.sent = _size(held)
        else:
            handles, self.sent = self._put_changes(held, source, version, last.version)
            publication = Publication(version, "delta", handles, base=last)
            self._chain, self._chain_bytes = self._chain + 1, self._chain_bytes + self.sent
            if self._chain >= LONGEST_CHAIN or self._chain_bytes >= _size(held):
                publication = replace(
                    publication, base=Publication(last.version, "delta", []), whole=self._whole(version, held)
                )
                self.sent += _size(held)
        self._held, self._last = held, publication
        return publication

    def _whole(self, version: int, held: Sequence[WeightsBlock]) -> Publication:
        self._chain, self._chain_bytes = 0, 0
        return Publication(version, "objectStore", [self._store.put(block) for block in held])

    def _put_changes(
        self, held: list[WeightsBlock], source: TensorSource, version: int, base: int
    ) -> tuple[list[Any], int]:
        """Handles of what changed, and its bytes; `held` becomes the new version, a block at a time.

        Several blocks' changes are put together, up to the bytes of a block: the handles of a whole chain are one message.
        """
        handles: list[Any] = []
        pending: list[BlockDelta] = []
        sent = waiting = 0
        spare = [
            torch.empty(0, dtype=torch.uint8)
        ]  # memory of the old block before, in which the next new one is made

        def room(size: int) -> Tensor:
            return spare[0][:size] if spare[0].numel() >= size else torch.empty(size, dtype=torch.uint8)

        for new in pack_weights(source, version, self._limit, room):
            old = held[new.number].block
            change = encode(
                old,
                new.block,
                width=width_of({place.dtype for place in new.index.values()}),
                base=base,
                version=new.version,
                number=new.number,
                blocks=new.blocks,
                checksum=new.checksum,
            )
            if pending and waiting + change.nbytes > self._limit:
                handles.append(self._store.put(pending))
                pending, waiting = [], 0
            held[new.number], spare[0] = new, torch.from_numpy(old)
            pending.append(change)
            sent, waiting = sent + change.nbytes, waiting + change.nbytes
            del new, old, change  # before the next block is made
        handles.append(self._store.put(pending))
        return handles, sent


class DeltaReceiver:
    """Implements `Receiver`: a copy of the last version, to which changes are applied."""

    def __init__(self, store: Store, place: str):
        """`place`: who receives and where, for what it says when nothing comes."""
        self._store, self._place = store, place
        self._held: list[WeightsBlock] | None = None  # in memory of its own
        self.received = 0
        """Bytes of weights that the last version took from the store."""

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """See `Receiver.receive`; the tensors are those of the copy, which the next call changes."""
        deadline = time.monotonic() + timeout

        def take(one: Publication) -> list[Any]:
            return take_blocks(self._store, one, self._place, timeout, deadline - time.monotonic())

        held = self._held
        whole, changes = path(publication, held[0].version if held else None)
        taken = None if whole is None else take(whole)
        parts = [take(change) for change in changes]
        self._held = None  # where what follows fails, half of it may be of another version
        self.received = 0
        if taken is not None:
            held = [replace(one, block=np.array(one.block)) for one in taken]
            self.received = _size(held)
        assert held is not None, "a path begins with what is held or with a whole version"
        for deltas in parts:
            held = self._changed(held, [delta for part in deltas for delta in part])
        found = unpack_weights(held)  # checks them
        self._held = held
        return found

    def _changed(self, held: Sequence[WeightsBlock], deltas: Sequence[BlockDelta]) -> list[WeightsBlock]:
        if len(deltas) != len(held):
            raise ModelError(
                f"{self._place}: expected {len(held)} blocks of version {deltas[0].version if deltas else 'none'}, found "
                f"{len(deltas)}; start the run again with --resume"
            )
        found = []
        for block, delta in zip(held, deltas, strict=True):
            if (delta.base, delta.number) != (block.version, block.number):
                raise ModelError(
                    f"{self._place}: expected what changed of block {block.number + 1} of version {block.version}, found of "
                    f"block {delta.number + 1} of version {delta.base}; start the run again with --resume"
                )
            apply(delta, block.block)
            self.received += delta.nbytes
            found.append(replace(block, version=delta.version, checksum=delta.checksum))
        return found


def path(publication: Publication, held: int | None) -> tuple[Publication | None, list[Publication]]:
    """How to get to a version from version `held`: the whole version to begin with, None: what is held, and the changes to
    apply in order."""
    changes: list[Publication] = []
    one: Publication | None = publication
    while one is not None and one.version != held and one.way == "delta":
        changes.append(one)
        one = one.base
    if one is not None and one.version == held:
        return None, changes[::-1]
    changes, one = [], publication
    while one.way == "delta" and one.whole is None:
        changes.append(one)
        assert one.base is not None, "changes are of something"
        one = one.base
    return one.whole or one, changes[::-1]


def _size(blocks: Sequence[WeightsBlock]) -> int:
    return sum(block.block.nbytes for block in blocks)
