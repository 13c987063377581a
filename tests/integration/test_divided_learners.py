"""Learners that divide a model between them (FSDP2 over gloo): the numbers of one process, whatever is divided how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from divided_learners import Case, Outcome, Ranks, run
from library_models import made_once
from small_families import save_small

FSDP = {"parallelism": "fsdp2"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(4, tmp_path_factory.mktemp("rendezvous"))
    yield group
    group.close()


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return made_once(tmp_path_factory, save_small)


def close(found: Outcome, expected: Outcome) -> None:
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5, atol=1e-5)
    assert found.weights.keys() == expected.weights.keys()
    for name, value in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("count", "size"), [(2, None), (4, None), (4, 2), (3, 1)])
def test_divided_and_replicated_ranks_give_the_parameters_of_one(ranks, family, count: int, size: int | None):
    folder = family("llama")
    expected = run(Case(folder), 0, 1)
    found = ranks(Case(folder, {**FSDP, "fsdpSize": size}), count)
    for one in found:
        close(one, expected)
