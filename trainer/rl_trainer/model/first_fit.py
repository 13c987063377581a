"""Which sequences share a row: first-fit decreasing. Pure, without torch: the driver cuts batches, too."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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
