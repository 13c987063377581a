"""Safetensors files written piece by piece are files that the library opens."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import stream_of
from safetensors import safe_open
from safetensors.torch import load_file

from rl_trainer.checkpoint.tensor_file import TensorStream, byte_count, write_tensors
from rl_trainer.model.folder import opened_tensors
from rl_trainer.weights.source import LazyTensor

torch.set_num_threads(1)
TENSORS = {
    "a": torch.arange(7.0),
    "half": torch.arange(5).to(torch.bfloat16),
    "none": torch.zeros(2, 0),
    "steps": torch.tensor(41),
    'name with " and ü': torch.ones(3, 2, dtype=torch.bool),
    "matrix": torch.arange(12.0).view(3, 4).T,
}


def stream(tensors: dict[str, torch.Tensor]) -> TensorStream:
    return stream_of({name: LazyTensor.of(value) for name, value in tensors.items()})


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("tensors", [TENSORS, {}, {"only": torch.ones(1)}], ids=["many", "none", "one"])
def test_the_library_reads_the_file(tensors: dict[str, torch.Tensor], tmp_path: Path):
    write_tensors(stream(tensors), tmp_path / "file", {"format": "pt"})
    same(load_file(tmp_path / "file"), tensors)
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    write_tensors(stream(tensors), tmp_path / "file")
    same(load_file(tmp_path / "file"), tensors)
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert not file.metadata()


def test_tensors_are_read_one_by_one_and_row_by_row(tmp_path: Path):
    write_tensors(stream(TENSORS), tmp_path / "file")
    with opened_tensors(tmp_path, "file") as tensors:
        # One that has no rows is read as it is.
        same({name: rows[:] if len(rows.shape) else rows for name, rows in tensors.items()}, TENSORS)
        for name, tensor in TENSORS.items():
            assert tuple(tensors[name].shape) == tuple(tensor.shape)
            if tensor.ndim and len(tensor) > 1:
                assert torch.equal(tensors[name][1:2], tensor[1:2])
        assert len(tensors) == len(TENSORS)
        with pytest.raises(KeyError, match="other"):
            tensors["other"]


def test_one_piece_is_held_at_a_time(tmp_path: Path):
    pieces: list[weakref.ref[Any]] = []

    def chunks() -> Iterator[np.ndarray]:
        for _ in range(4):
            assert not any(piece() is not None for piece in pieces)
            piece = np.zeros(8, np.uint8)
            pieces.append(weakref.ref(piece))
            yield piece
            del piece

    write_tensors(TensorStream({"a": ("F32", (8,))}, chunks), tmp_path / "file")
    assert len(pieces) == 4


@pytest.mark.parametrize("count", [0, 31, 33])
def test_other_bytes_than_the_shapes_say_are_refused(count: int, tmp_path: Path):
    made = replace(stream({"a": torch.ones(8)}), chunks=lambda: iter([np.zeros(count, np.uint8)]))
    assert byte_count(made.shapes) == 32
    with pytest.raises(ValueError, match=f"{count} bytes came instead of 32"):
        write_tensors(made, tmp_path / "file")


def test_tensors_that_readers_could_not_map_are_refused(tmp_path: Path):
    made = TensorStream({"a": ("BF16", (1,)), "b": ("F32", (1,))}, lambda: iter(()))
    with pytest.raises(ValueError, match="b \\(F32\\) begins at byte 2"):
        write_tensors(made, tmp_path / "file")


def test_what_the_stream_raises_comes_through(tmp_path: Path):
    def chunks() -> Iterator[np.ndarray]:
        yield np.zeros(4, np.uint8)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_tensors(TensorStream({"a": ("F32", (8,))}, chunks), tmp_path / "file")
