"""Which tokens of a sequence each process computes; what processes exchange is tested with several of them."""

from __future__ import annotations

import copy

import pytest
import torch

from rl_api.errors import ModelError
from rl_trainer.model.context import Context
from rl_trainer.model.library_context import own_part


def processes(size: int) -> list[Context]:
    return [Context(None, size, rank) for rank in range(size)]


@pytest.mark.parametrize(("size", "total"), [(2, 8), (2, 7), (3, 7), (4, 5), (4, 1)])
def test_every_token_is_of_one_process(size: int, total: int) -> None:
    rows = torch.arange(1.0, total + 1)[:, None]
    parts = [one.take(rows) for one in processes(size)]
    assert len({part.shape for part in parts}) == 1
    assert torch.equal(torch.cat(parts)[:total], rows)
    assert not torch.cat(parts)[total:].any()
    wanted = torch.tensor([0, total - 1, total // 2])
    taken = torch.zeros(3)
    for one, part in zip(processes(size), parts, strict=True):
        own, places = one.own(wanted, total)
        taken[own] += part[places, 0]
    assert torch.equal(taken, wanted + 1.0)


@pytest.mark.parametrize("width", [6, 5])
def test_columns_of_the_library_are_even_parts(width: int) -> None:
    places = torch.tensor([0, width - 1, width, 2 * width - 2])
    inputs = {"input_ids": torch.arange(2 * width).view(2, width), "attention_mask": torch.ones(2, width)}
    found = torch.zeros(4, dtype=torch.int64)
    for one in processes(2):
        padded, own_places, own = own_part(inputs, places, one)
        each = padded["input_ids"].shape[1] // 2
        columns = padded["input_ids"][:, one.rank * each : (one.rank + 1) * each]
        found[own] = columns.flatten()[own_places]
        assert not padded["attention_mask"][:, width:].any()
    assert torch.equal(found, places)


def test_a_copy_of_a_model_has_the_same_processes() -> None:
    [one] = processes(1)
    assert copy.deepcopy({"context": one})["context"] is one


def test_heads_are_shared_evenly() -> None:
    for size in (1, 2, 4):
        Context(None, size, 0).check_heads(8, 4)
    with pytest.raises(
        ModelError, match=r"contextSize: found 8, allowed .* 8 attention heads and 4 .*: 1, 2, 4$"
    ):
        Context(None, 8, 0).check_heads(8, 4)
