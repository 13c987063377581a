"""The keys and values of the sequences in flight, in one preallocated tensor with a row per slot."""

from __future__ import annotations

import torch

from rl_trainer.model.config import DecoderConfig

BLOCK = 16


def round_up(value: int, block: int = BLOCK) -> int:
    """The next multiple of `block`."""
    return -(-value // block) * block


class KVCache:
    """Keys and values [layers, 2, slots, kv_heads, capacity, D]; `capacity` grows to the longest sequence
    asked for.

    Slots are a multiple of 16 and so is the capacity: the decode step works on whole blocks (see `decode`).
    Per layer, `keys` and `values` are views [slots kv_heads, capacity, D], and `rows` is a view of both, [2
    slots kv_heads capacity, D].
    """

    def __init__(self, config: DecoderConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.slots = round_up(slots)
        self.capacity = 0
        shape = (config.layers, 2, self.slots, config.kv_heads, 0, config.head_dim)
        self._data = torch.zeros(shape, dtype=dtype, device=device)
        self._views()

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens; keeps what is stored."""
        if length <= self.capacity:
            return
        old = self._data
        shape = list(old.shape)
        shape[4] = round_up(length)
        # Zeros, not garbage: masked positions still take part in a product with probability 0, and 0 * NaN is
        # NaN.
        self._data = torch.zeros(shape, dtype=old.dtype, device=old.device)
        self._data[:, :, :, :, : self.capacity] = old
        self.capacity = shape[4]
        self._views()

    def _views(self) -> None:
        heads, dim = self.slots * self.config.kv_heads, self.config.head_dim
        self.keys = [layer[0].view(heads, self.capacity, dim) for layer in self._data]
        self.values = [layer[1].view(heads, self.capacity, dim) for layer in self._data]
        self.rows = [layer.view(-1, dim) for layer in self._data]

    def rows_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at `positions` int64 [n] of slots 0..n-1 go in `rows`: [n, 2 kv_heads], keys then values."""
        heads = self.config.kv_heads
        kind_and_head = torch.arange(2 * heads, device=positions.device)
        # Rows are ordered by (kind, slot, head, position).
        kind, head = kind_and_head // heads, kind_and_head % heads
        slot = torch.arange(len(positions), device=positions.device)
        return ((kind * self.slots + slot[:, None]) * heads + head) * self.capacity + positions[:, None]

    def store(self, prefix: torch.Tensor, entries: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy prefixes [layers, 2, B, kv_heads, T, D]: entry `entries[i]` of B becomes the start of slot `slots[i]`."""
        self._data[:, :, :, :, : prefix.shape[4]].index_copy_(2, slots, prefix.index_select(2, entries))

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of slots `sources` to slots `targets` (int64 [m] each)."""
        part = self._data[:, :, :, :, :length]
        part.index_copy_(2, targets, part.index_select(2, sources))
