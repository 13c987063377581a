"""Attention of one new token per sequence over the cache: two ways to compute the same.

`BatchedProducts` is the plain one. `WeightedRows` sees that for one token both products are sums of cache rows with weights
(scores: key rows weighted by the query's elements, result: value rows weighted by probabilities), which is what an
embedding bag computes; PyTorch's CPU kernel for those streams through memory about twice as fast as its batched product of
matrices with so few rows.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F

from rl_trainer.model.config import DecoderConfig

# With more query heads per key head the batched product reads the cache once for all of them and wins.
MOST_GROUPS_FOR_ROWS = 4


class Attention(Protocol):
    """softmax(query keys + mask) values for n sequences."""

    shortest: int

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """query [n, heads, D] (scaled), keys [slots kv_heads, D, M], values [slots kv_heads, M, D], mask [n, 1, L].

        Returns [n, heads D], overwritten by the next call. `shortest` is the least L.
        """
        ...


def make_attention(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> Attention:
    """The faster way for this model and device."""
    if device.type == "cpu" and dtype == torch.float32 and config.groups <= MOST_GROUPS_FOR_ROWS:
        return WeightedRows(config)
    return BatchedProducts(config)


class BatchedProducts:
    """A batch of small matrix products, one for each sequence and key head."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        # Below 400 multiplications per matrix PyTorch adds in another order: results would depend on L.
        self.shortest = math.ceil(400 / (config.groups * config.head_dim))

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention`."""
        config, n, length = self.config, mask.shape[0], mask.shape[2]
        used = n * config.kv_heads
        mask = mask.expand(n, config.kv_heads, length).reshape(used, 1, length)
        grouped = query.view(used, config.groups, config.head_dim)
        scores = torch.baddbmm(mask, grouped, keys[:used, :, :length])
        probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        return torch.bmm(probabilities, values[:used, :length]).view(n, -1)


class WeightedRows:
    """Weighted sums of cache rows, one for each sequence and query head."""

    shortest = 1

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self._key_rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._value_rows: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention`."""
        config, n, length, capacity = self.config, mask.shape[0], mask.shape[2], keys.shape[2]
        rows, bags = self._keys_for(n)
        table = keys.view(-1, capacity)[:, :length]
        scores = F.embedding_bag(rows, table, bags, mode="sum", per_sample_weights=query.view(-1))
        scores = scores.view(n, config.heads, length).add_(mask)
        torch.softmax(scores, dim=-1, out=scores)
        rows, bags = self._values_for(n, length, capacity)
        table = values.view(-1, config.head_dim)
        attended = F.embedding_bag(rows, table, bags, mode="sum", per_sample_weights=scores.view(-1))
        return attended.view(n, -1)

    def _keys_for(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [n heads D] of the keys' elements and the start [n heads] of each head's."""
        if n not in self._key_rows:
            self._key_rows[n] = self._bags(n, self.config.head_dim, self.config.head_dim)
        return self._key_rows[n]

    def _values_for(self, n: int, length: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [n heads L] of the values and the start [n heads] of each head's."""
        key = (n, length, capacity)
        if key not in self._value_rows:
            # They change once in 16 steps; older ones are not needed again soon.
            self._value_rows = {key: self._bags(n, length, capacity)}
        return self._value_rows[key]

    def _bags(self, n: int, count: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For each of n sequences and each query head: the first `count` of its key head's `stride` rows."""
        config = self.config
        key_head = torch.arange(n * config.kv_heads, dtype=torch.int32).repeat_interleave(config.groups)
        rows = key_head[:, None] * stride + torch.arange(count, dtype=torch.int32)
        bags = torch.arange(n * config.heads, dtype=torch.int32) * count
        return rows.view(-1), bags
