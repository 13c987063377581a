"""Both ways to attend with one new token are softmax(q k + mask) v."""

from __future__ import annotations

import pytest
import torch

from rl_trainer.model.config import DecoderConfig
from rl_trainer.sampler.attention import BatchedProducts, WeightedRows, make_attention

CAPACITY = 64


def config(heads, kv_heads, dim) -> DecoderConfig:
    return DecoderConfig("qwen2", 10, 32, 1, heads, kv_heads, dim, 16, 64)


def case(heads, kv_heads, dim, n=16, length=32, slots=32):
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(n, heads, dim, generator=generator)
    keys = torch.randn(slots * kv_heads, dim, CAPACITY, generator=generator)
    values = torch.randn(slots * kv_heads, CAPACITY, dim, generator=generator)
    ends = torch.randint(1, length + 1, (n, 1, 1), generator=generator)
    mask = torch.where(torch.arange(length) < ends, 0.0, -torch.inf)
    return query, keys, values, mask


@pytest.mark.parametrize("kind", [BatchedProducts, WeightedRows])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (4, 4, 8), (6, 1, 16), (2, 2, 64)])
def test_equals_the_formula(kind, heads, kv_heads, dim):
    query, keys, values, mask = case(heads, kv_heads, dim)
    n, length, groups = 16, 32, heads // kv_heads
    q = query.view(n, kv_heads, groups, dim)
    k = keys.view(-1, kv_heads, dim, CAPACITY)[:n, :, :, :length]
    v = values.view(-1, kv_heads, CAPACITY, dim)[:n, :, :length]
    expected = torch.softmax(q @ k + mask[:, None], -1) @ v
    attention = kind(config(heads, kv_heads, dim))
    for _ in range(2):  # the second time from what the first has prepared
        found = attention(query.clone(), keys, values, mask)
        torch.testing.assert_close(found.view_as(expected), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [BatchedProducts, WeightedRows])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (4, 4, 8), (3, 1, 16)])
def test_same_bits_in_longer_and_larger_batches(kind, heads, kv_heads, dim):
    attention = kind(config(heads, kv_heads, dim))
    shortest = -(-attention.shortest // 16) * 16
    query, keys, values, mask = case(heads, kv_heads, dim, n=32, length=shortest)
    reference = attention(query, keys, values, mask).clone()
    for length in range(shortest, CAPACITY + 1, 16):
        longer = torch.full((32, 1, length), -torch.inf)
        longer[:, :, :shortest] = mask
        assert torch.equal(attention(query, keys, values, longer), reference)
    assert torch.equal(attention(query[:16], keys, values, mask[:16]), reference[:16])


def test_the_choice():
    cpu = torch.device("cpu")
    assert isinstance(make_attention(config(4, 2, 32), cpu, torch.float32), WeightedRows)
    assert isinstance(make_attention(config(14, 2, 64), cpu, torch.float32), BatchedProducts)
    assert isinstance(make_attention(config(4, 2, 32), cpu, torch.bfloat16), BatchedProducts)
    assert isinstance(make_attention(config(4, 2, 32), torch.device("meta"), torch.float32), BatchedProducts)
