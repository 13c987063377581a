"""Weights through a store: what is received is what was published, by a deadline, and every rank takes part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from kept_blocks import KeptBlocks

from rl_api.errors import DeadlineExceeded, ModelError
from rl_api.roles import Transport
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_receiver
from rl_trainer.weights.transports.object_store import StorePublisher

TENSORS = {"large": torch.arange(2000.0).view(4, 500), "half": torch.arange(30).to(torch.bfloat16)}


def offer() -> Offer:
    return Offer(lambda: source_of({name: LazyTensor.of(value) for name, value in TENSORS.items()}))


def test_what_is_received_is_what_was_published():
    store = KeptBlocks()
    published = StorePublisher(store, 0, limit=256).publish(offer(), 4)
    assert published is not None
    assert (published.version, published.way, published.base) == (4, "objectStore", None)
    assert len(published.blocks) > 8
    found = create_receiver("auto", store, place="here").receive(published, 1.0)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], value) for name, value in TENSORS.items())


def test_other_ranks_make_the_tensors_with_the_first_and_publish_nothing():
    made: list[str] = []

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in TENSORS.items():
            made.append(name)
            yield name, value

    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in TENSORS.items()}
    store = KeptBlocks()
    assert StorePublisher(store, 1).publish(Offer(lambda: TensorSource(shapes, items)), 4) is None
    assert made == list(TENSORS)
    assert not store.blocks


class Slow(KeptBlocks):
    """Keeps a block only when the next one is being made."""

    def __init__(self) -> None:
        super().__init__()
        self.made = threading.Semaphore(0)
        self.threads: set[int] = set()

    def put(self, block: object) -> int:
        assert self.made.acquire(timeout=10.0)
        self.threads.add(threading.get_ident())
        return super().put(block)


def test_a_block_is_put_while_the_next_is_made():
    store = Slow()
    tensors = {str(number): torch.full((50,), float(number)) for number in range(9)}

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        for number, one in enumerate(tensors.items()):
            if number in (3, 5, 7, 8):  # the last tensor of a block, but for the first one's
                store.made.release()
            yield one
        store.made.release()

    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    published = StorePublisher(store, 0, limit=512).publish(Offer(lambda: TensorSource(shapes, items)), 4)
    assert published is not None
    assert published.blocks == list(range(5))
    assert len(store.threads) == 1
    assert store.threads != {threading.get_ident()}
    found = create_receiver("objectStore", store, place="here").receive(published, 1.0)
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_what_does_not_arrive_or_is_damaged_is_named():
    store = KeptBlocks()
    published = StorePublisher(store, 0).publish(offer(), 4)
    assert published is not None
    receiver = create_receiver("objectStore", store, place="sampler 3 on node 10.0.0.7")
    with pytest.raises(
        DeadlineExceeded,
        match=r"^sampler 3 on node 10\.0\.0\.7: weights of version 4 did not arrive within weightSync\.timeout \(60 s\)",
    ):
        receiver.receive(replace(published, blocks=[99]), 60.0)
    one = store.blocks[0]
    store.blocks[0] = replace(one, checksum=one.checksum ^ 1)
    with pytest.raises(ModelError, match="weights of version 4, block 1 of 1: checksum"):
        receiver.receive(published, 60.0)


class Believed(KeptBlocks):
    """Has been told by others that one of its blocks is right."""

    def __init__(self, right: int) -> None:
        super().__init__()
        self.right = right
        self.asked: list[list[int]] = []

    def check(self, handles: Sequence[int], blocks: Sequence[Any], check: Callable[[Any], None]) -> None:
        self.asked.append([one.number for one in blocks])
        for handle, block in zip(handles, blocks, strict=True):
            if handle != self.right:
                check(block)


@pytest.mark.parametrize("transport", ["objectStore", "auto", "collective"])
def test_the_store_says_which_blocks_need_no_check(transport: Transport):
    store = Believed(1)
    published = StorePublisher(store, 0, limit=4096).publish(offer(), 4)
    assert published is not None
    receiver = create_receiver(transport, store, place="here")
    for number, block in list(store.blocks.items()):
        store.blocks[number] = replace(block, checksum=block.checksum ^ 1)
        if number == store.right:
            assert torch.equal(receiver.receive(published, 1.0)["half"], TENSORS["half"])
        else:
            with pytest.raises(ModelError, match=f"version 4, block {number + 1} of 2: checksum"):
                receiver.receive(published, 1.0)
        store.blocks[number] = block
    assert store.asked == [[0, 1]] * 2
    with pytest.raises(ModelError, match="expected block 1 of 2, found 2 of 2"):
        receiver.receive(replace(published, blocks=published.blocks[::-1]), 1.0)
    assert len(store.asked) == 2, "blocks in another order are not of a version, whoever has seen them"
