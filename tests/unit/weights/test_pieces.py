"""Large tensors are made in pieces: the same bytes in blocks and files, and never more than a piece at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_trainer.model.folder import read_tensors, write_weights
from rl_trainer.weights.payload import pack_weights, unpack_weights
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.stream import byte_rounds

TENSORS = {
    "large": torch.arange(21 * 40.0).view(21, 40),
    "turned": torch.arange(48 * 5.0).view(5, 48).T,
    "small": torch.arange(6.0).view(2, 3),
    "none": torch.zeros(0, 3),
}


class Made:
    """Sources whose tensors are made by rows; `most`: bytes of them that were in memory at once."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0
        self.largest = 0

    def rows(self, value: torch.Tensor, first: int, last: int) -> torch.Tensor:
        made = value[first:last].clone()
        self.alive.append(weakref.ref(made.untyped_storage()))
        left = [one() for one in self.alive]
        self.most = max(self.most, sum(one.nbytes() for one in left if one is not None))
        self.largest = max(self.largest, made.nbytes)
        return made

    def whole(self, value: torch.Tensor) -> torch.Tensor:
        return self.rows(value, 0, len(value))

    def source(self, limit: int, dtype: torch.dtype = torch.float32) -> TensorSource:
        lazy = {
            name: LazyTensor(
                value.dtype, tuple(value.shape), partial(self.whole, value), partial(self.rows, value)
            ).to(dtype)
            for name, value in TENSORS.items()
        }
        return source_of(lazy, limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [64, 512, 4096])
def test_blocks_of_pieces_are_blocks_of_whole_tensors(block: int, dtype: torch.dtype):
    made = Made()
    found = unpack_weights(list(pack_weights(made.source(320, dtype), 1, block)))
    assert found.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert torch.equal(found[name], value.to(dtype)), name
    assert made.largest <= 320 * (4 // dtype.itemsize)
    assert made.most <= made.largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [50, 1000])
def test_files_of_pieces_are_files_of_whole_tensors(limit: int, dtype: torch.dtype):
    made = Made()
    source = made.source(320, dtype)
    chunks = [
        data for found in byte_rounds(source, source.shapes, limit=limit, copied=True) for _, data in found
    ]
    whole = [
        TENSORS[name].contiguous().to(dtype).view(torch.uint8).flatten().numpy()
        for name in made.source(1).shapes
    ]
    assert np.array_equal(np.concatenate(chunks), np.concatenate(whole))
    assert made.largest <= 320 * (4 // dtype.itemsize)


def test_a_folder_has_the_numbers_of_another_format(tmp_path: Path):
    write_weights(Made().source(320, torch.bfloat16), tmp_path)
    found = read_tensors(tmp_path)
    assert found.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], value.to(torch.bfloat16)), name


def test_pieces_are_what_is_made_also_of_what_was_in_a_narrower_format_in_between():
    value = torch.linspace(0, 1, 40).view(8, 5)
    lost = LazyTensor.of(value).to(torch.bfloat16).to(torch.float32)
    assert torch.equal(torch.cat(list(lost.pieces(40))), lost.make())
    assert torch.equal(lost.make(), value.to(torch.bfloat16).float())
    again = lost.to(torch.float16)
    assert torch.equal(torch.cat(list(again.pieces(40))).to(torch.float16), again.make())


def test_ranks_whose_bytes_nobody_wants_make_the_same_pieces_at_the_same_time():
    made: list[list[tuple[int, str]]] = []
    for wanted in (TENSORS, ["large"], []):
        chunk, found = [0], list[tuple[int, str]]()
        made.append(found)

        def items(
            chunk: list[int] = chunk, found: list[tuple[int, str]] = found
        ) -> Iterator[tuple[str, torch.Tensor]]:
            for name, value in Made().source(320).items():
                found.append((chunk[0], name))
                yield name, value

        for _ in byte_rounds(TensorSource(Made().source(320).shapes, items), wanted, limit=200):
            chunk[0] += 1
    assert made[0] == made[1] == made[2]
    assert len(made[0]) > len(TENSORS)


def test_a_row_is_the_least():
    assert [len(piece) for piece in LazyTensor.of(TENSORS["large"]).pieces(10)] == [21], (
        "its rows cannot be made alone"
    )
    large = TENSORS["large"]
    by_rows = LazyTensor(
        large.dtype, tuple(large.shape), lambda: large, lambda first, last: large[first:last]
    )
    assert [len(piece) for piece in by_rows.pieces(10)] == [1] * 21
    assert [len(piece) for piece in by_rows.pieces(320)] == [2] * 10 + [1]
    assert [len(piece) for piece in by_rows.pieces(10**6)] == [21]
