"""Attention of one new token per sequence over the cache.

Scores are a batch of small matrix products. The second product can be seen as sums of value rows weighted by
probabilities, which is what an embedding bag computes: PyTorch's CPU kernel for those reads memory about
twice as fast as its batched product of matrices with so few rows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from rl_trainer.model.config import DecoderConfig

# With more query heads per key head the batched product, which reads the values once for all of them, is as
# fast.
MOST_GROUPS_FOR_BAGS = 7


class DecodeAttention:
    """softmax(query keys + mask) values for n sequences; `bags` chooses the second product, None: the faster one."""

    def __init__(
        self, config: DecoderConfig, device: torch.device, dtype: torch.dtype, bags: bool | None = None
    ) -> None:
        self.config = config
        on_cpu = device.type == "cpu" and dtype == torch.float32
        self.bags = on_cpu and config.groups <= MOST_GROUPS_FOR_BAGS if bags is None else bags
        # Below 400 multiplications per matrix PyTorch adds in another order: results would depend on L.
        self.shortest = math.ceil(400 / (config.groups * config.head_dim))
        self._buffer = torch.empty(0, device=device, dtype=dtype)
        self._rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """query [n, heads, D] (scaled), keys and values [slots kv_heads, M, D], mask [n kv_heads, 1, L] ->
        [n, heads D].

        L is a multiple of 16 of at least `shortest`, at most M. What the mask excludes must be finite.
        """
        config, length = self.config, mask.shape[2]
        used = mask.shape[0]
        grouped = query.view(used, config.groups, config.head_dim)
        scores = self._scores(used, length, query)
        torch.baddbmm(mask, grouped, keys[:used].transpose(1, 2), out=scores)
        if scores.dtype == torch.float32:
            torch.softmax(scores, dim=-1, out=scores)
        else:
            scores = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        if not self.bags:
            return torch.bmm(scores, values[:used]).view(len(query), -1)
        rows, starts = self._bags(used, length)
        table = values.view(-1, config.head_dim)
        attended = F.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=scores.view(-1))
        return attended.view(len(query), -1)

    def forget_buffers(self) -> None:
        """Gives the work space back; the next call makes it anew."""
        self._buffer = self._buffer.new_empty(0)
        self._rows = {}

    def _scores(self, used: int, length: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer [used, groups, L]: fresh memory of this size would be paged in anew in every layer."""
        if self._buffer.numel() < used * self.config.groups * length:
            self._buffer = like.new_empty(used * self.config.groups * length)
        return self._buffer[: used * self.config.groups * length].view(used, self.config.groups, length)

    def _bags(self, used: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The value rows of every query head, int32 [used groups L], and where each head's begin, int32 [used groups]."""
        key = (used, length)
        if key not in self._rows:
            first = torch.arange(used, dtype=torch.int32).repeat_interleave(self.config.groups) * length
            rows = first[:, None] + torch.arange(length, dtype=torch.int32)
            # They change once in 16 steps; older ones are not needed again soon.
            self._rows = {key: (rows.view(-1), torch.arange(len(first), dtype=torch.int32) * length)}
        return self._rows[key]
