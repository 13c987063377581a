"""Files that share a slow start are known by name: each that asks for it is among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from together import ON_A_CLUSTER_WITH_KUEUE, Together

TESTS = Path(__file__).parents[1]


def test_every_file_that_asks_for_the_cluster_with_kueue_is_named() -> None:
    asking = {
        file.name
        for file in (TESTS / "integration").glob("test_*.py")
        if "queued: QueuedCluster" in file.read_text()
    }
    assert asking == set(ON_A_CLUSTER_WITH_KUEUE)


def test_they_are_one_piece_of_work_and_each_other_file_is_one(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command line is the only thing that it reads of a configuration.
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    spread = Together(pytestconfig)
    with_kueue = {
        spread._split_scope(f"tests/integration/{name}::test_a") for name in ON_A_CLUSTER_WITH_KUEUE
    }
    assert len(with_kueue) == 1
    assert spread._split_scope("tests/unit/test_a.py::T::test_b") == "tests/unit/test_a.py"
