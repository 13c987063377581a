"""Sequences that share rows: every token once, positions of its own sequence, and rows as narrow as the longest."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_trainer.model.first_fit import Rooms, first_fit
from rl_trainer.model.row_packing import RowPacking

lengths_strategy = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def mask_of(lengths: list[int]) -> torch.Tensor:
    return (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()


def test_by_hand() -> None:
    packing = RowPacking.of(mask_of([2, 5, 3]))
    assert packing is not None
    # The longest first; then 3 and 2, which are rows 2 and 0 of the batch, whose rows are 5 wide.
    assert packing.source.tolist() == [[5, 6, 7, 8, 9], [10, 11, 12, 0, 1]]
    assert packing.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert packing.place[[0, 1, 5, 12]].tolist() == [8, 9, 0, 7]
    assert RowPacking.of(mask_of([5, 4, 3])) is None, "no two fit into a row"
    short = RowPacking.of(mask_of([5, 2, 2]))
    assert short is not None
    assert short.position_ids[1].tolist() == [0, 1, 0, 1, 0], "the end of a row is a sequence of its own"


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_each_goes_into_the_first_row_with_room(lengths: list[int]) -> None:
    width, free = max(lengths), []
    rooms = Rooms(width)
    for length in sorted(lengths, reverse=True):
        row = next((row for row, room in enumerate(free) if room >= length), len(free))
        free += [width] * (row == len(free))
        free[row] -= length
        assert (rooms.add(length), len(rooms)) == (row, len(free))


@given(lengths=lengths_strategy, one_row=st.booleans())
def test_every_token_is_there_once(lengths: list[int], one_row: bool) -> None:
    mask = mask_of(lengths)
    packing = RowPacking.of(mask, one_row=one_row)
    rows = first_fit(lengths, sum(lengths) if one_row else max(lengths))
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    if packing is None:
        assert len(rows) == len(lengths)
        return
    assert len(packing.source) == len(rows) < len(lengths)
    assert packing.source.shape[1] == (sum(lengths) if one_row else max(lengths))
    tokens = mask.flatten().nonzero().squeeze(1)
    assert torch.equal(packing.source.flatten()[packing.place[tokens]], tokens)
    assert torch.equal(packing.position_ids.flatten()[packing.place[tokens]], tokens % mask.shape[1])
    # What tells sequences apart: positions that do not go on.
    starts = (packing.position_ids == 0).sum()
    assert len(lengths) <= starts <= len(lengths) + len(rows)
