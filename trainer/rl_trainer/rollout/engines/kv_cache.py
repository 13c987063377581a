"""The keys and values of the sequences in flight, preallocated, with a row per slot.

Memory is reserved for the longest sequence asked for, but laid out for the longest one there is: attention
then reads one stretch of memory from end to end, which a CPU does up to three times as fast as the same bytes
with gaps between them. When the longest sequence enters another block of 16 positions, the layers are copied
into the new layout, once in 16 steps.
"""

from __future__ import annotations

import torch

from rl_trainer.model.config import DecoderConfig

BLOCK = 16


def round_up(value: int, block: int = BLOCK) -> int:
    """The next multiple of `block`."""
    return -(-value // block) * block


class KVCache:
    """Per layer keys and values [2, slots, kv_heads, capacity, D]; slots and capacity are multiples of 16.

    Of layer l, `keys[l]` and `values[l]` are views [slots kv_heads, capacity, D], and `rows[l]` is a view of
    both, [2 slots kv_heads capacity, D].
    """

    def __init__(self, config: DecoderConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.slots = round_up(slots)
        self.capacity = 0
        self._room = 0
        self._calm = 0
        self._recent = 0
        # One more than there are layers: a layer moves into the spare one, and leaves its own as the next
        # spare.
        self._storage = [torch.empty(0, dtype=dtype, device=device) for _ in range(config.layers + 1)]
        self._layers: list[torch.Tensor] = []
        self._lay_out(0, 0)

    def reserve(self, length: int) -> None:
        """Have memory for sequences of `length` tokens; keeps what is stored."""
        room = round_up(length)
        if room <= self._room:
            return
        size = 2 * self.slots * self.config.kv_heads * room * self.config.head_dim
        for index, old in enumerate(self._storage):
            # Zeros, not garbage: masked positions still take part in a product with probability 0, and 0 *
            # NaN is NaN.
            self._storage[index] = old.new_zeros(size)
            self._storage[index][: len(old)] = old
        self._room = room
        self._views()

    def fit(self, length: int, used: int) -> None:
        """Lay out for a longest sequence of `length` tokens among the first `used` slots, whose contents are
        kept.

        Grows at once, and shrinks after 16 calls that needed less.
        """
        needed = round_up(length)
        if needed >= self.capacity:
            self._calm = self._recent = 0
        else:
            self._calm += 1
            self._recent = max(self._recent, needed)
        if needed > self.capacity:
            self.reserve(needed)
            self._lay_out(needed, used)
        elif self._calm >= BLOCK:
            self._lay_out(self._recent, used)
            self._calm = self._recent = 0

    def _lay_out(self, capacity: int, used: int) -> None:
        old, kept = self._layers, min(self.capacity, capacity)
        self.capacity = capacity
        if kept and used:
            for index, layer in enumerate(old):
                spare = self._storage.pop()
                self._view(spare)[:, :used, :, :kept] = layer[:, :used, :, :kept]
                self._storage.insert(index, spare)
                # The list is now: new layouts up to `index`, then the old storage of `index`, then the rest.
                self._storage.append(self._storage.pop(index + 1))
        self._views()

    def _view(self, storage: torch.Tensor) -> torch.Tensor:
        shape = (2, self.slots, self.config.kv_heads, self.capacity, self.config.head_dim)
        return storage[: 2 * shape[1] * shape[2] * shape[3] * shape[4]].view(shape)

    def _views(self) -> None:
        heads, dim = self.slots * self.config.kv_heads, self.config.head_dim
        self._layers = [self._view(storage) for storage in self._storage[:-1]]
        self.keys = [layer[0].view(heads, self.capacity, dim) for layer in self._layers]
        self.values = [layer[1].view(heads, self.capacity, dim) for layer in self._layers]
        self.rows = [layer.view(-1, dim) for layer in self._layers]

    def rows_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at `positions` int64 [n] of slots 0..n-1 go in `rows`: [n 2 kv_heads], keys then values."""
        heads = self.config.kv_heads
        # Rows are ordered by (kind, slot, head, position).
        kind = torch.arange(2, device=positions.device)[None, :, None] * self.slots
        slot = torch.arange(len(positions), device=positions.device)[:, None, None]
        head = torch.arange(heads, device=positions.device)[None, None]
        return (((kind + slot) * heads + head) * self.capacity + positions[:, None, None]).view(-1)

    def store(self, prefix: torch.Tensor, entries: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy prefixes [layers, 2, B, kv_heads, T, D]: entry `entries[i]` of B becomes the start of slot `slots[i]`."""
        length = min(prefix.shape[4], self.capacity)
        for layer, part in zip(self._layers, prefix, strict=True):
            layer[:, :, :, :length].index_copy_(1, slots, part.index_select(1, entries)[:, :, :, :length])

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` positions of slots `sources` to slots `targets`."""
        for layer in self._layers:
            # Faster than index operations, which copy what is not contiguous as a whole first.
            for source, target in zip(sources, targets, strict=True):
                layer[:, target, :, :length] = layer[:, source, :, :length]

    def storage(self) -> list[torch.Tensor]:
        """All of its memory."""
        return list(self._storage)

    @torch.inference_mode()
    def clear(self) -> None:
        """Overwrite everything with zeros."""
        for storage in self._storage:
            storage.zero_()
