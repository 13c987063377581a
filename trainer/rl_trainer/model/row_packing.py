"""Several sequences of a padded batch in each row, one after the other, told apart by positions that begin anew.

What models of the Hugging Face library understand: their masks (and flash attention's bounds of sequences) are made of
`position_ids` where no `attention_mask` is given. Kernels with a mask take time and memory by rows x width^2, so rows are as
wide as the longest sequence and no wider; flash attention takes everything in one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_trainer.model.first_fit import first_fit


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
