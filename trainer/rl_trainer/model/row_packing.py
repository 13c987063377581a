"""Several sequences of a padded batch in each row, one after the other, told apart by positions that begin anew.

What models of the Hugging Face library understand: their masks (and flash attention's bounds of sequences) are made of
`position_ids` where no `attention_mask` is given. Kernels with a mask take time and memory by rows x width^2, so rows are as
wide as the longest sequence and no wider; flash attention takes everything in one row.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class RowPacking:
    """Where each token of a right-padded batch [B, T] stands in rows [R, W] that sequences share.

    Attributes:
        source: int64 [R, W], the place in the flattened [B * T] of each token; at the ends of rows, which nothing that is
            wanted sees, 0.
        position_ids: int64 [R, W], of each sequence from 0; the end of a row is a sequence of its own.
        place: int64 [B * T], the inverse of `source`, 0 for padding.
    """

    source: Tensor
    position_ids: Tensor
    place: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor, *, one_row: bool = False) -> RowPacking | None:
        """The packing of a batch; None where it would need as many rows. `one_row`: everything in one, however wide."""
        batch, length = attention_mask.shape
        lengths = attention_mask.sum(1).tolist()
        width = sum(lengths) if one_row else max(lengths)
        rows = first_fit(lengths, width)
        if len(rows) == batch:
            return None
        source, positions = np.zeros((2, len(rows), width), np.int64)
        place = np.zeros((batch, length), np.int64)
        for row, members in enumerate(rows):
            start = 0
            for member in members:
                columns = np.arange(lengths[member])
                there = slice(start, start + lengths[member])
                source[row, there] = member * length + columns
                positions[row, there] = columns
                place[member, : lengths[member]] = row * width + start + columns
                start = there.stop
            positions[row, start:] = np.arange(width - start)

        def tensor(array: npt.NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(array).to(attention_mask.device)

        return cls(tensor(source), tensor(positions), tensor(place.ravel()))


def first_fit(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Rows of at most `width` tokens, as indices into `lengths`: longest first, each into the first row with room.

    First-fit decreasing (Johnson 1973): at most 11/9 of the fewest possible rows, and 6/9 of one more.
    """
    rows: list[list[int]] = []
    rooms = Rooms(width)
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        row = rooms.add(lengths[index])
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
    return rows


class Rooms:
    """Rows of `width` tokens that fill up, longest sequences first.

    As lengths never rise, a row with room for one has room for the next: those are in a heap by number, all others in one
    by room, so that a sequence costs no look at every row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = 0
        self._open: list[tuple[int, int]] = []  # row and its free tokens
        self._closed: list[tuple[int, int]] = []  # free tokens below the last length, negative, and the row

    def __len__(self) -> int:
        return self._rows

    def add(self, length: int) -> int:
        """The first row with room for `length` tokens, which has them from now on; where none has, a new one.

        `length`: >= 1, and no more than that of the call before.
        """
        while self._closed and -self._closed[0][0] >= length:
            free, row = heapq.heappop(self._closed)
            heapq.heappush(self._open, (row, -free))
        if not self._open:
            heapq.heappush(self._closed, (length - self._width, self._rows))
            self._rows += 1
            return self._rows - 1
        row, free = self._open[0]
        if free - length >= length:
            heapq.heapreplace(self._open, (row, free - length))
        else:
            heapq.heappop(self._open)
            heapq.heappush(self._closed, (length - free, row))
        return row
