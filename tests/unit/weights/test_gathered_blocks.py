"""Blocks that are gathered where they are put: the same block as a packed one, of buffers that nobody has copied."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from kept_blocks import KeptBlocks

from rl_api.errors import ModelError
from rl_trainer.weights.gathered import GatheredBlock, gather_weights
from rl_trainer.weights.payload import Rooms, WeightsBlock, pack_weights, unpack_weights
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.object_store import StorePublisher

torch.set_num_threads(1)
LIMIT = 1 << 20
TENSORS = {
    "wide": torch.arange(100_000.0).view(100, 1000),
    "odd": torch.arange(200_003.0).to(torch.bfloat16),
    "norm": torch.arange(30).to(torch.bfloat16),
    "turned": torch.arange(90_000.0).view(300, 300).T,
    "rows": torch.arange(600_000).to(torch.bfloat16).view(1000, 600),
    "made": torch.arange(300_000).to(torch.bfloat16).view(1000, 300),
    "narrowed": torch.linspace(0, 1, 150_000).to(torch.bfloat16).view(300, 500),
    "none": torch.zeros(0, 3),
    "scalar": torch.tensor(7),
}


def source() -> TensorSource:
    """`turned` is no memory that can be lent; `made` is made in pieces, when it is asked for; `narrowed` is kept in fp32."""
    tensors = {name: LazyTensor.of(value) for name, value in TENSORS.items()}
    made = TENSORS["made"]
    tensors["made"] = replace(
        tensors["made"], make=made.clone, rows=lambda first, last: made[first:last].clone(), shared=False
    )
    tensors["narrowed"] = LazyTensor.of(torch.linspace(0, 1, 150_000).view(300, 500)).to(torch.bfloat16)
    return source_of(tensors, limit=300_000)


def stored(block: GatheredBlock, *, gap: int = 0) -> WeightsBlock:
    """As Ray's store gives it: buffers at multiples of 64, in memory that nobody may write to."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    room = np.empty(sum(-(-len(one) // 64) * 64 + gap for one in raw) + 64, np.uint8)
    at, places = -room.ctypes.data % 64, []
    for one in raw:
        room[at : at + len(one)] = np.frombuffer(one, np.uint8)
        places.append((at, at + len(one)))
        at += -(-len(one) // 64) * 64 + gap
    room.flags.writeable = False
    found: WeightsBlock = pickle.loads(data, buffers=[memoryview(room)[first:last] for first, last in places])
    return found


def same(one: WeightsBlock, other: WeightsBlock) -> bool:
    def head(block: WeightsBlock) -> tuple[Any, ...]:
        return block.version, block.number, block.blocks, dict(block.index), block.checksum

    return head(one) == head(other) and np.array_equal(one.block, other.block)


def test_a_gathered_block_is_a_packed_one_in_the_memory_it_was_put_in():
    packed = list(pack_weights(source(), 3, LIMIT))
    assert len(packed) > 2
    for gathered, block in zip(gather_weights(source(), 3, Rooms(), LIMIT), packed, strict=True):
        found = stored(gathered)
        assert same(found, block)
        assert not found.block.flags.owndata
        assert not found.block.flags.writeable
        apart = stored(gathered, gap=64)
        assert same(apart, block)


def test_a_models_own_memory_is_not_copied_and_what_is_made_is():
    own = {name: value.untyped_storage().data_ptr() for name, value in TENSORS.items()}
    ends = {name: own[name] + value.nbytes for name, value in TENSORS.items()}
    lent = dict.fromkeys(TENSORS, 0)
    total = 0
    for block in gather_weights(source(), 3, Rooms(), LIMIT):
        for buffer in block.buffers:
            total += buffer.nbytes
            for name in TENSORS:
                if own[name] <= buffer.ctypes.data < ends[name]:
                    lent[name] += buffer.nbytes
    assert {name for name, size in lent.items() if size} == {"wide", "odd", "rows"}
    for name in ("wide", "odd", "rows"):
        assert lent[name] >= TENSORS[name].nbytes - (64 << 10)
    assert total == sum(block.block.nbytes for block in pack_weights(source(), 3, LIMIT))


def test_the_memory_of_a_block_lives_as_long_as_its_tensors():
    blocks = [stored(block) for block in gather_weights(source(), 3, Rooms(), LIMIT)]
    found = unpack_weights(blocks)
    del blocks
    assert all(torch.equal(found[name], value) for name, value in TENSORS.items())


def test_a_damaged_buffer_is_found():
    first, *others = gather_weights(source(), 3, lambda size: torch.empty(size, dtype=torch.uint8), LIMIT)
    damaged = first.buffers[1].copy()
    damaged[9] ^= 1
    blocks = [replace(first, buffers=(first.buffers[0], damaged, *first.buffers[2:])), *others]
    with pytest.raises(ModelError, match=r"version 3, block 1 of \d+: checksum 0x\w+ found"):
        unpack_weights([stored(block) for block in blocks])


def test_what_is_published_is_what_the_model_was_then():
    tensors = {"a": torch.arange(50_000.0), "b": torch.arange(7.0)}
    store = KeptBlocks()
    expected = {name: value.clone() for name, value in tensors.items()}
    offered = Offer(lambda: source_of({name: LazyTensor.of(value) for name, value in tensors.items()}))
    published = StorePublisher(store, 0, LIMIT).publish(offered, 1)
    assert published is not None
    tensors["a"].zero_()
    found = unpack_weights(store.get(published.blocks, 1.0))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
