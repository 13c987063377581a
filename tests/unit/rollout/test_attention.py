"""Both ways to attend with one new token are softmax(q k + mask) v."""

from __future__ import annotations

import pytest
import torch

from rl_trainer.model.config import DecoderConfig
from rl_trainer.rollout.engines.attention import DecodeAttention

CAPACITY = 64
CPU = torch.device("cpu")


def attention(heads, kv_heads, dim, bags=None, dtype=torch.float32, device=CPU) -> DecodeAttention:
    return DecodeAttention(
        DecoderConfig("qwen2", 10, 32, 1, heads, kv_heads, dim, 16, 64), device, dtype, bags
    )


def case(heads, kv_heads, dim, n=16, length=64, slots=32):
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(n, heads, dim, generator=generator)
    keys, values = torch.randn(2, slots * kv_heads, CAPACITY, dim, generator=generator)[
        :, :, :length
    ].contiguous()
    ends = torch.randint(1, length + 1, (n, 1, 1), generator=generator).repeat_interleave(kv_heads, 0)
    mask = torch.where(torch.arange(length) < ends, 0.0, -torch.inf)
    return query, keys, values, mask


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (4, 4, 8), (6, 1, 16), (2, 2, 64)])
def test_equals_the_formula(bags, heads, kv_heads, dim):
    query, keys, values, mask = case(heads, kv_heads, dim)
    used = len(mask)
    q = query.view(used, heads // kv_heads, dim)
    expected = torch.softmax(q @ keys[:used].mT + mask, -1) @ values[:used]
    attend = attention(heads, kv_heads, dim, bags)
    for _ in range(2):  # the second time from what the first has prepared
        found = attend(query, keys, values, mask)
        torch.testing.assert_close(found.view_as(expected), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (4, 4, 16), (3, 1, 16)])
def test_same_bits_in_longer_and_larger_batches(bags, heads, kv_heads, dim):
    attend = attention(heads, kv_heads, dim, bags)
    shortest = -(-attend.shortest // 16) * 16
    query, keys, values, _ = case(heads, kv_heads, dim, n=32)
    mask = case(heads, kv_heads, dim, n=32, length=shortest)[3]
    reference = attend(query, keys[:, :shortest].contiguous(), values[:, :shortest].contiguous(), mask)
    for length in range(shortest, CAPACITY + 1, 16):
        longer = torch.full((*mask.shape[:2], length), -torch.inf)
        longer[:, :, :shortest] = mask
        cut = keys[:, :length].contiguous(), values[:, :length].contiguous()
        assert torch.equal(attend(query, *cut, longer), reference)
        assert torch.equal(attend(query[:16], *cut, longer[: 16 * kv_heads]), reference[:16])


def test_the_choice():
    assert attention(4, 2, 32).bags
    assert not attention(16, 2, 64).bags
    assert not attention(4, 2, 32, dtype=torch.bfloat16).bags
    assert not attention(4, 2, 32, device=torch.device("meta")).bags
