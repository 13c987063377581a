from __future__ import annotations

import pytest
import torch

from rl_trainer.model.config import DecoderConfig
from rl_trainer.rollout.engines.kv_cache import KVCache, round_up

CONFIG = DecoderConfig("qwen2", 10, 8, 3, 2, 2, 4, 8, 512)


def filled(slots=20, length=40) -> tuple[KVCache, torch.Tensor]:
    """A cache whose slots hold distinct prefixes of `length` tokens, and these [layers, 2, slots, kv_heads, length, D]."""
    cache = KVCache(CONFIG, slots, torch.float32, torch.device("cpu"))
    cache.fit(length, 0)
    prefix = torch.randn(3, 2, slots, 2, length, 4)
    cache.store(prefix, torch.arange(slots), torch.arange(slots))
    return cache, prefix


def stored(cache: KVCache, slots: int, length: int) -> torch.Tensor:
    shape = (cache.slots, 2, cache.capacity, 4)
    layers = [(k.view(shape), v.view(shape)) for k, v in zip(cache.keys, cache.values, strict=True)]
    return torch.stack([torch.stack(layer)[:, :slots, :, :length] for layer in layers])


def test_whole_blocks():
    assert [round_up(value) for value in (0, 1, 16, 17)] == [0, 16, 16, 32]
    cache, _ = filled()
    assert (cache.slots, cache.capacity) == (32, 48)


def test_contents_survive_growth_and_shrinking():
    cache, prefix = filled()
    for length in (49, 100, 300):
        cache.fit(length, 20)
        assert cache.capacity == round_up(length)
        assert torch.equal(stored(cache, 20, 40), prefix)
        assert len({keys.data_ptr() for keys in cache.keys}) == 3
    for call in range(16):
        assert cache.capacity == 304
        cache.fit(41 + call, 20)
    assert cache.capacity == 64  # the most that was needed in these 16 calls
    assert torch.equal(stored(cache, 20, 40), prefix)


def test_a_need_for_all_of_it_postpones_shrinking():
    cache, _ = filled()
    cache.fit(200, 20)
    for _ in range(5):
        for _ in range(15):
            cache.fit(20, 20)
        cache.fit(200, 20)
    assert cache.capacity == 208


def test_memory_is_reserved_once():
    cache, prefix = filled()
    cache.reserve(120)
    assert torch.equal(stored(cache, 20, 40), prefix)
    known = {storage.data_ptr() for storage in cache._storage}
    for length in (60, 90, 120):
        cache.fit(length, 20)
        assert {storage.data_ptr() for storage in cache._storage} == known


def test_rows_are_where_the_views_show_them():
    cache, _ = filled()
    positions = torch.tensor([0, 7, 39, 47])
    keys_and_values = torch.randn(4, 4, 4)
    cache.rows[1].index_copy_(0, cache.rows_of(positions), keys_and_values.view(-1, 4))
    for slot, position in enumerate(positions):
        for head in range(2):
            row = slot * 2 + head
            assert torch.equal(cache.keys[1][row, position], keys_and_values[slot, head])
            assert torch.equal(cache.values[1][row, position], keys_and_values[slot, 2 + head])


def test_chosen_prefixes_and_moves():
    cache, prefix = filled()
    other = torch.randn(3, 2, 5, 2, 64, 4)  # longer than the layout: only what fits is needed
    cache.store(other, torch.tensor([4, 4, 0]), torch.tensor([1, 3, 19]))
    cache.move([19, 3], [0, 2], 10)
    expected = prefix.clone()
    for slot, entry in ((1, 4), (3, 4), (19, 0)):
        expected[:, :, slot] = other[:, :, entry, :, :40]
    expected[:, :, 0, :, :10] = other[:, :, 0, :, :10]
    expected[:, :, 2, :, :10] = other[:, :, 4, :, :10]
    assert torch.equal(stored(cache, 20, 40), expected)


@pytest.mark.parametrize("length", [1, 40])
def test_clear(length):
    cache, _ = filled()
    cache.fit(length, 20)
    cache.clear()
    assert not any(storage.any() for storage in cache._storage)
