"""Tensors as pieces of bytes, the same work on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.stream import byte_chunks, file_shapes

torch.set_num_threads(1)
TENSORS = {
    "a": torch.arange(7.0),
    "none": torch.zeros(2, 0),
    "turned": torch.arange(12.0).view(3, 4).T,
    "half": torch.arange(5).to(torch.bfloat16),
    "scalar": torch.tensor(3.0),
    "whole": torch.tensor([1, 2]),
}


def recorded(made: list[str]) -> TensorSource:
    """The source, which notes what is asked for."""
    source = source_of({name: LazyTensor.of(value) for name, value in TENSORS.items()})

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in source.items():
            made.append(name)
            yield name, value
        made.append("the end")

    return TensorSource(source.shapes, items)


def test_wide_numbers_come_first_and_every_tensor_after_its_order():
    assert list(file_shapes(recorded([])).items()) == [
        ("whole", ("I64", (2,))),
        ("a", ("F32", (7,))),
        ("none", ("F32", (2, 0))),
        ("turned", ("F32", (4, 3))),
        ("scalar", ("F32", ())),
        ("half", ("BF16", (5,))),
    ]


@pytest.mark.parametrize("limit", [1, 5, 16, 64, 106, 1000])
def test_the_bytes_are_all_there_and_ranks_make_the_same_for_each_piece(limit: int):
    first: list[str] = []
    other: list[str] = []
    expected = b"".join(
        TENSORS[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name in recorded([]).shapes
    )
    used, unused = (
        byte_chunks(recorded(first), limit=limit),
        byte_chunks(recorded(other), used=False, limit=limit),
    )
    found = b""
    for chunk, nothing in zip(used, unused, strict=True):
        assert chunk is not None
        assert nothing is None
        assert first == other
        assert chunk.dtype == np.uint8
        assert len(chunk) == min(limit, len(expected) - len(found))
        found += chunk.tobytes()
        if len(found) == len(expected):
            assert first[-1] == "the end", "known with the last piece: nobody asks again"
    assert found == expected


def test_nothing_has_no_pieces():
    assert list(byte_chunks(source_of({}))) == []
