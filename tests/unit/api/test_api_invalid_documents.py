"""One table: what a person gets wrong, and every sentence they are told."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rl_api import check_document
from rl_api.documents import load_value
from rl_api.paths import parse_path, render_path

GOOD: dict[str, Any] = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "arithmetic"},
    "spec": {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    },
}
TABLE = Path(__file__).with_name("invalid_documents.txt")


def changed(changes: str) -> dict[str, Any]:
    """GOOD with `path: value` for each line of `changes`; value `DELETE` takes the field away."""
    document = deepcopy(GOOD)
    for line in changes.strip().splitlines():
        name, _, raw = line.strip().partition(": ")
        *parents, last = parse_path(name)
        container: Any = document
        for part in parents:
            container = container[part] if isinstance(part, int) else container.setdefault(part, {})
        if raw == "DELETE":
            del container[last]
        else:
            container[last] = load_value(raw)
    return document


def read_table() -> list[tuple[str, list[str]]]:
    """The table's rows: changes, and the sentences they lead to."""
    rows = []
    for block in TABLE.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        sentences = [line.removeprefix("=> ") for line in lines if line.startswith("=> ")]
        if lines:
            rows.append(("\n".join(line for line in lines if not line.startswith("=> ")), sentences))
    return rows


INVALID = read_table()


@pytest.mark.parametrize(("changes", "expected"), INVALID, ids=[changes[:60] for changes, _ in INVALID])
def test_every_mistake_has_its_sentence(changes: str, expected: list[str]) -> None:
    resource, problems = check_document(changed(changes))
    assert resource is None
    assert sorted(f"{render_path(p.path)}: {p.sentence}" for p in problems) == sorted(expected)


def test_the_table_is_about_a_document_that_is_good() -> None:
    resource, problems = check_document(GOOD)
    assert problems == []
    assert resource is not None
    assert len(INVALID) >= 100
    assert all(sentences for _, sentences in INVALID)


@pytest.mark.parametrize("document", [[1], "text", 5, None])
def test_a_document_that_is_no_object(document: object) -> None:
    _, problems = check_document(document)
    assert [p.path for p in problems] == [()]
    assert problems[0].sentence.endswith("allowed: an object with apiVersion, kind, metadata and spec")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ("", True),
        ("spec.checkpoint.everySteps: 5", True),
        ("spec.checkpoint.storage: {persistentVolumeClaim: disk}", False),
        ("spec.checkpoint.storage: {s3: 's3://bucket/runs'}", False),
        ("spec.checkpoint: null", False),
    ],
)
def test_storage_is_needed_on_a_cluster_only(changes: str, missing: bool) -> None:
    document = changed(changes)
    assert check_document(document, "local")[1] == []
    sentences = [problem.sentence for problem in check_document(document, "cluster")[1]]
    assert sentences == (
        [
            "missing, required on a cluster, whose pods lose their disks: persistentVolumeClaim, s3 or path "
            "(or checkpoint: null)"
        ]
        if missing
        else []
    )


def of_size(size: int) -> dict[str, Any]:
    """A run whose spec has this many bytes as JSON."""
    document = deepcopy(GOOD)
    document["spec"]["task"]["args"] = {}
    left = size - len(json.dumps(document["spec"], separators=(",", ":")))
    document["spec"]["task"]["args"] = {"a": "b" * (left - len('"a":""'))}
    return document


def test_a_spec_is_at_most_64_kib() -> None:
    assert check_document(of_size(65_536))[1] == []
    (problem,) = check_document(of_size(65_537))[1]
    assert problem.path == ("spec",)
    assert problem.sentence.startswith("found 65537 bytes of JSON, allowed: at most 65536")


def test_half_a_character_is_refused_where_any_text_may_stand() -> None:
    document = deepcopy(GOOD)
    document["spec"]["task"]["args"] = {"a": ["\ud800"]}
    (problem,) = check_document(document)[1]
    assert problem == (("spec",), "found half a character (a lone surrogate), allowed: text in Unicode", ())
