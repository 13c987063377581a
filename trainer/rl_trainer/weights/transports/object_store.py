"""Weights through the store: the learner puts every block there once, and each sampler takes them when it wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import Tensor

from rl_api.errors import DeadlineExceeded
from rl_trainer.weights.gathered import GatheredBlock, gather_weights
from rl_trainer.weights.payload import BLOCK_BYTES, Rooms, WeightsBlock, check_block, unpack_weights
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.transports.base import Lends, Offer, Store, never
from rl_trainer.weights.transports.publication import Publication


class StorePublisher:
    """Implements `Publisher`: all weights, in blocks."""

    def __init__(self, store: Store, rank: int, limit: int = BLOCK_BYTES):
        """`limit`: bytes of a block at most."""
        self._store, self._rank, self._limit = store, rank, limit
        self._rooms = Rooms()

    def publish(self, offer: Offer, version: int) -> Publication | None:
        """See `Publisher.publish`."""
        source = offer.as_laid()
        if self._rank:
            take_part(source)
            return None
        blocks = put_blocks(self._store, gather_weights(source, version, self._rooms, self._limit))
        return Publication(version, "objectStore", blocks)


class StoreReceiver:
    """Implements `Receiver`: all blocks of a version before any of it is used, and no copy of them."""

    def __init__(self, store: Store, place: str, lends: Lends = never):
        """`place`: who receives and where, for what it says when nothing comes; `lends`: see `Lends`."""
        self._store, self._place, self._lends = store, place, lends

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """See `Receiver.receive`."""
        blocks = take_blocks(self._store, publication, self._place, timeout)
        check = partial(self._store.check, publication.blocks, check=check_block)
        return unpack_weights(blocks, lent=self._lends([one.block for one in blocks]), check=check)


def put_blocks(store: Store, blocks: Iterator[GatheredBlock] | Iterator[WeightsBlock]) -> list[Any]:
    """Their handles. Each is put by a thread while the next is made here, as what makes it may be a collective; when a block
    is asked for, those before the last are in the store.
    """
    handles: list[Any] = []
    with ThreadPoolExecutor(1, "weights to the store") as thread:
        last: Future[Any] | None = None
        for block in blocks:
            if last is not None:
                handles.append(last.result())
            last = thread.submit(store.put, block)
        if last is not None:
            handles.append(last.result())
    return handles


def take_blocks(
    store: Store, publication: Publication, place: str, timeout: float, left: float | None = None
) -> list[Any]:
    """The blocks of a publication; `left`: of `timeout` seconds, where some have passed. Raises DeadlineExceeded."""
    try:
        return store.get(publication.blocks, timeout if left is None else max(0.0, left))
    except TimeoutError:
        raise DeadlineExceeded(
            f"{place}: weights of version {publication.version} did not arrive within weightSync.timeout "
            f"({timeout:.0f} s); look at the network between the learner's node and this one"
        ) from None


def take_part(source: TensorSource) -> None:
    """What a rank whose values nobody wants does in the making of a source."""
    for _ in source.items():
        pass
