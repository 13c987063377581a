"""Tensors as pieces of bytes, the same work on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.stream import byte_rounds, file_shapes

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
def test_the_bytes_are_all_there_and_ranks_make_the_same_in_each_round(limit: int):
    first: list[str] = []
    other: list[str] = []
    expected = {
        name: value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in TENSORS.items()
    }
    ours, theirs = {"a", "turned"}, TENSORS.keys() - {"a", "turned"}
    found = dict.fromkeys(TENSORS, b"")
    rounds = zip(
        byte_rounds(recorded(first), ours, limit=limit),
        byte_rounds(recorded(other), theirs, limit=limit),
        strict=True,
    )
    for mine, rest in rounds:
        assert first == other
        assert {name for name, _ in mine} <= ours
        assert {name for name, _ in rest} <= theirs
        assert sum(len(data) for _, data in (*mine, *rest)) <= limit
        for name, data in (*mine, *rest):
            assert data.dtype == np.uint8
            found[name] += data.tobytes()
    assert found == expected
    assert first[-1] == "the end"


def test_nothing_is_one_round_in_which_there_is_nothing():
    assert list(byte_rounds(source_of({}), ())) == [[]]


def test_bytes_are_not_copied_where_they_lie_as_a_file_wants_them():
    tensor = torch.arange(6.0)
    ((_, data),) = next(byte_rounds(source_of({"a": LazyTensor.of(tensor)}), {"a"}))
    assert data.__array_interface__["data"][0] == tensor.data_ptr()
