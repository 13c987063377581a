"""Files that share a slow start are known by name: each that asks for it is among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from together import ON_A_CLUSTER, ON_A_CLUSTER_WITH_KUEUE, Together

TESTS = Path(__file__).parents[1]


def test_every_file_that_asks_for_the_cluster_with_kueue_is_named() -> None:
    asking = {
        file.name
        for file in (TESTS / "integration").glob("test_*.py")
        if "queued: QueuedCluster" in file.read_text()
    }
    assert asking == set(ON_A_CLUSTER_WITH_KUEUE)


def test_every_file_that_is_named_for_the_other_cluster_asks_for_it() -> None:
    # That each that asks is named is seen where tests are collected (tests/integration/conftest.py).
    for name in ON_A_CLUSTER:
        text = (TESTS / "integration" / name).read_text()
        assert re.search(r"\bkube: KubeApi\b|\bkubeconfig\b", text), name
    assert not set(ON_A_CLUSTER) & set(ON_A_CLUSTER_WITH_KUEUE)


def test_they_are_one_piece_of_work_and_each_other_file_is_one(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command line is the only thing that it reads of a configuration.
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    spread = Together(pytestconfig)
    works = [
        {spread._split_scope(f"tests/integration/{name}::test_a") for name in names}
        for names in (ON_A_CLUSTER_WITH_KUEUE, ON_A_CLUSTER)
    ]
    assert [len(work) for work in works] == [1, 1]
    assert works[0] != works[1]
    assert spread._split_scope("tests/unit/test_a.py::T::test_b") == "tests/unit/test_a.py"
