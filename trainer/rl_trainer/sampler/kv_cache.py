"""The keys and values of the sequences in flight, preallocated, with a row per slot."""

from __future__ import annotations

import torch

from rl_trainer.model.config import DecoderConfig

BLOCK = 16


def round_up(value: int, block: int = BLOCK) -> int:
    """The next multiple of `block`."""
    return -(-value // block) * block


class KVCache:
    """Keys [layers, slots, kv_heads, D, capacity] and values [layers, slots, kv_heads, capacity, D].

    Keys are stored by dimension, so that both products of attention walk along rows. `capacity` grows to the longest
    sequence asked for. Slots are a multiple of 16 and so is the capacity: the decode step works on whole blocks.
    """

    def __init__(self, config: DecoderConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.slots = round_up(slots)
        self.capacity = 0
        shape = (config.layers, self.slots, config.kv_heads)
        self._keys = torch.zeros(*shape, config.head_dim, 0, dtype=dtype, device=device)
        self._values = torch.zeros(*shape, 0, config.head_dim, dtype=dtype, device=device)
        self._views()

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens; keeps what is stored."""
        if length <= self.capacity:
            return
        keys, values, old = self._keys, self._values, self.capacity
        self.capacity = round_up(length)
        # Zeros, not garbage: masked positions still take part in a product with probability 0, and 0 * NaN is NaN.
        self._keys = keys.new_zeros(*keys.shape[:4], self.capacity)
        self._values = values.new_zeros(*values.shape[:3], self.capacity, values.shape[4])
        self._keys[..., :old] = keys
        self._values[:, :, :, :old] = values
        self._views()

    def _views(self) -> None:
        heads, dim = self.slots * self.config.kv_heads, self.config.head_dim
        self.keys = [layer.view(heads, dim, self.capacity) for layer in self._keys]
        self.values = [layer.view(heads, self.capacity, dim) for layer in self._values]

    def store(self, prefix: torch.Tensor, entries: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy prefixes [layers, 2, B, kv_heads, T, D]: entry `entries[i]` of B becomes the start of slot `slots[i]`."""
        chosen, length = prefix.index_select(2, entries), prefix.shape[4]
        self._keys[..., :length].index_copy_(1, slots, chosen[:, 0].transpose(-1, -2))
        self._values[:, :, :, :length].index_copy_(1, slots, chosen[:, 1])

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of slots `sources` to slots `targets` (int64 [m] each)."""
        for part in (self._keys[..., :length], self._values[:, :, :, :length]):
            part.index_copy_(1, targets, part.index_select(1, sources))
