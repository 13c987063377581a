"""Weights as blocks: whole, of one version, or refused; and never more than one of them at a time."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from rl_api.errors import ModelError
from rl_trainer.model.folder import read_tensors
from rl_trainer.rollout.engines.endpoint import EndpointEngine
from rl_trainer.weights.merged import MergedTensors
from rl_trainer.weights.payload import Tensors, WeightsBlock, pack_weights, shapes_of, unpack_weights
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of

torch.set_num_threads(1)
LIMIT = 256
TENSORS = {
    "large": torch.arange(200.0).view(4, 50),
    "none": torch.zeros(0, 3),
    "half": torch.arange(30).to(torch.bfloat16),
    "scalar": torch.tensor(7),
    "turned": torch.arange(40.0).view(8, 5).T,
    "last": torch.arange(50.0),
}


def source(tensors: dict[str, torch.Tensor] = TENSORS) -> TensorSource:
    return source_of({name: LazyTensor.of(value) for name, value in tensors.items()})


def packed(version: int = 3) -> list[WeightsBlock]:
    return list(pack_weights(source(), version, LIMIT))


def test_blocks_hold_what_was_packed_and_no_more_than_the_limit():
    blocks = packed()
    assert [(block.number, block.blocks, block.version) for block in blocks] == [
        (number, len(blocks), 3) for number in range(len(blocks))
    ]
    assert len(blocks) > 2
    for block in blocks:
        assert block.block.nbytes <= LIMIT
    assert sum("large" in block.index for block in blocks) == 4, "800 bytes in blocks of 256"
    found = unpack_weights(blocks)
    assert found.keys() == TENSORS.keys()
    assert found.shapes == {name: tuple(value.shape) for name, value in TENSORS.items()}
    assert shapes_of(found) == shapes_of(TENSORS)
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_an_outside_server_gets_weights_of_which_one_is_put_together_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those that are split over blocks are copies."""
    base = unpack_weights(packed())
    found = MergedTensors(base, {"half": torch.ones(30)}, base.shapes)
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    looked_up: list[str] = []
    plain = Tensors.__getitem__

    def look_up(tensors: Tensors, name: str) -> torch.Tensor:
        assert not alive
        looked_up.append(name)
        value = plain(tensors, name).clone()
        alive.add(value)
        return value

    monkeypatch.setattr(Tensors, "__getitem__", look_up)
    engine: Any = EndpointEngine.__new__(EndpointEngine)
    engine._options = SimpleNamespace(folder=tmp_path)
    engine._write(found, "weights", "weights of version 3")
    assert sorted(looked_up) == sorted(TENSORS.keys() - {"half"})
    written = read_tensors(tmp_path / "weights")
    for name, value in (TENSORS | {"half": torch.ones(30)}).items():
        assert written[name].dtype == value.dtype
        assert torch.equal(written[name], value), name


def test_nothing_is_one_empty_block():
    blocks = list(pack_weights(source({}), 1))
    assert len(blocks) == 1
    assert unpack_weights(blocks) == {}


def test_there_is_one_block_at_a_time_and_one_tensor():
    """As `LearnerActor` publishes: with a `put` that keeps nothing."""
    blocks: list[weakref.ref[object]] = []
    tensors: list[weakref.ref[object]] = []

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        for index in range(9):
            assert not any(one() is not None for one in tensors), "the tensor before is held"
            # Three tensors to a block: the fourth is of the next.
            assert index % 3 or not any(one() is not None for one in blocks), "the block before is held"
            tensor = torch.full((16,), float(index))
            tensors.append(weakref.ref(tensor))
            yield str(index), tensor
            del tensor

    def put(block: WeightsBlock) -> int:
        blocks.append(weakref.ref(block.block))
        return block.number

    shapes = {str(index): (torch.float32, (16,)) for index in range(9)}
    assert list(map(put, pack_weights(TensorSource(shapes, items), 1, 3 * 64))) == [0, 1, 2]


@pytest.mark.parametrize("number", range(3))
def test_a_damaged_block_is_named(number: int):
    blocks = packed()
    bytes_ = blocks[number].block.copy()
    bytes_[5] ^= 1
    blocks[number] = replace(blocks[number], block=bytes_)
    with pytest.raises(
        ModelError,
        match=rf"^weights of version 3, block {number + 1} of {len(blocks)}: checksum 0x\w+ found, 0x\w+ sent; the "
        "transfer damaged them, start the run again with --resume$",
    ):
        unpack_weights(blocks)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda blocks: blocks[:-1], "version 3: expected block 7 of 7, found none"),
        (lambda blocks: blocks[1:], "version 3: expected block 1 of 7, found 2 of 7 of version 3"),
        (lambda blocks: [blocks[0], *packed(4)[1:]], "expected block 2 of 7, found 2 of 7 of version 4"),
        (
            lambda blocks: [blocks[1], blocks[0], *blocks[2:]],
            "expected block 1 of 7, found 2 of 7 of version 3",
        ),
        (lambda blocks: [*blocks, blocks[0]], "expected block 8 of 7, found 1 of 7 of version 3"),
        (lambda blocks: [], "found none"),
    ],
    ids=["the last is missing", "the first is missing", "two versions", "order", "one too many", "none"],
)
def test_blocks_that_are_not_all_of_one_version_are_refused(wrong, found: str):
    assert len(packed()) == 7
    with pytest.raises(ModelError, match=re.escape(found)):
        unpack_weights(wrong(packed()))


def test_another_number_format_is_for_numbers_with_a_point():
    assert torch.equal(
        LazyTensor.of(torch.tensor(1.5)).to(torch.bfloat16).make(), torch.tensor(1.5).bfloat16()
    )
    assert LazyTensor.of(torch.tensor(1)).to(torch.bfloat16).make().dtype == torch.int64


class Copied(torch.Tensor):
    """Says that it is on a GPU, and notes the number format of whatever is copied from one."""

    formats: ClassVar[list[torch.dtype]] = []
    device = torch.device("cuda")  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            cls.formats.append(args[1].dtype)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_numbers_of_a_gpu_are_converted_before_they_are_copied_to_the_host():
    value = torch.arange(200.0).view(4, 50)
    lazy = LazyTensor(value.dtype, tuple(value.shape), lambda: value.as_subclass(Copied)).to(torch.bfloat16)
    found = unpack_weights(list(pack_weights(source_of({"a": lazy}), 1, LIMIT)))
    assert torch.equal(found["a"], value.to(torch.bfloat16))
    assert set(Copied.formats) == {torch.bfloat16}
