"""Safetensors files written piece by piece are files that the library opens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rl_api.errors import CheckpointError, ModelError
from rl_trainer.checkpoint.manifest import sha256_of
from rl_trainer.checkpoint.tensor_file import ROWS, ShardWriter, file_head
from rl_trainer.model.folder import opened_tensors
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.stream import byte_rounds, file_shapes

torch.set_num_threads(1)
TENSORS = {
    "a": torch.arange(7.0),
    "half": torch.arange(5).to(torch.bfloat16),
    "none": torch.zeros(2, 0),
    "steps": torch.tensor(41),
    'name with " and ü': torch.ones(3, 2, dtype=torch.bool),
    "matrix": torch.arange(12.0).view(3, 4).T,
}
FLOATS = {"a": ("F32", (8,))}


def saved(tensors: dict[str, torch.Tensor], folder: Path, name: str = "file", **rows: list[int]) -> str:
    """The name of the file; `rows`: of those tensors of which it holds some only, see ROWS."""
    source = source_of({key: LazyTensor.of(value) for key, value in tensors.items()})
    metadata = {"format": "pt", **({ROWS: json.dumps(rows)} if rows else {})}
    with ShardWriter(folder, [file_head(name, file_shapes(source), metadata)]) as writer:
        for pieces in byte_rounds(source, tensors, limit=10):
            for _, data in pieces:
                writer.write(name, data)
        digests = writer.finish()
    assert digests == {name: ((folder / name).stat().st_size, sha256_of(folder / name))}
    return name


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("tensors", [TENSORS, {}, {"only": torch.ones(1)}], ids=["many", "none", "one"])
def test_the_library_reads_the_file(tensors: dict[str, torch.Tensor], tmp_path: Path):
    saved(tensors, tmp_path)
    same(load_file(tmp_path / "file"), tensors)
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_are_read_one_by_one_and_row_by_row(tmp_path: Path):
    saved(TENSORS, tmp_path)
    with opened_tensors(tmp_path, ["file"]) as tensors:
        # One that has no rows is read as it is.
        same({name: rows[:] if len(rows.shape) else rows for name, rows in tensors.items()}, TENSORS)
        for name, tensor in TENSORS.items():
            assert tuple(tensors[name].shape) == tuple(tensor.shape)
            if tensor.ndim and len(tensor) > 1:
                assert torch.equal(tensors[name][1:2], tensor[1:2])
        assert len(tensors) == len(TENSORS)
        with pytest.raises(KeyError, match="other"):
            tensors["other"]


def test_rows_that_several_files_hold_are_read_as_one_tensor(tmp_path: Path):
    matrix = torch.arange(28.0).view(7, 4)
    names = [
        saved({"m": matrix[4:], "all": torch.ones(3)}, tmp_path, "b", m=[4, 7]),
        saved({"m": matrix[:4], "other": torch.tensor(2)}, tmp_path, "a", m=[0, 7]),
    ]
    with opened_tensors(tmp_path, names) as tensors:
        assert set(tensors) == {"m", "all", "other"}
        assert tensors["m"].shape == (7, 4)
        for start in range(8):
            for stop in range(start, 8):
                assert torch.equal(tensors["m"][start:stop], matrix[start:stop]), (start, stop)
        assert torch.equal(tensors["m"][:], matrix)
        assert torch.equal(tensors["all"][0:3], torch.ones(3))


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 7)])
def test_rows_that_no_file_holds_are_a_sentence(first: int, last: int, tmp_path: Path):
    saved({"m": torch.ones(last - first, 2)}, tmp_path, "part", m=[first, 7])
    with (
        pytest.raises(ModelError, match="part: some of the 7 rows of m are in none of the files"),
        opened_tensors(tmp_path, ["part"]),
    ):
        pass


@pytest.mark.parametrize("count", [0, 31, 33])
def test_other_bytes_than_the_head_says_are_refused(count: int, tmp_path: Path):
    head = file_head("part/file", FLOATS)
    assert head.size - len(head.content) == 32
    with ShardWriter(tmp_path, [head]) as writer:
        writer.write("part/file", np.zeros(count, np.uint8))
        with pytest.raises(CheckpointError, match=r"^part/file: .* bytes came instead of"):
            writer.finish()


def test_tensors_that_readers_could_not_map_are_refused():
    with pytest.raises(ValueError, match="b \\(F32\\) begins at byte 2"):
        file_head("file", {"a": ("BF16", (1,)), "b": ("F32", (1,))})


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "model").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"^model/model\.safetensors: File exists$"):
        ShardWriter(tmp_path, [file_head("model/model.safetensors", FLOATS)])
