"""What a manifest holds, and in what another job differs from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rl_generate.job import Options, difference, manifest, parts_at_once, rows_of_a_part
from rl_generate.progress import Meter
from rl_generate.rows import Columns

OPTIONS = Options(stop=("x",))
PLACE: dict[str, Any] = {"input": "ab", "rows": 7, "model": "step-20-ab", "format": "jsonl", "part_rows": 64}


def as_read(found: dict[str, Any]) -> Any:
    return json.loads(json.dumps(found))


def test_the_same_job_has_the_same_manifest() -> None:
    assert difference(as_read(manifest(OPTIONS, **PLACE)), manifest(OPTIONS, **PLACE)) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"temperature": 0.0}, "--temperature: it was begun with 1.0, found 0.0"),
        ({"top_p": 0.5}, "--top-p: it was begun with 1.0, found 0.5"),
        ({"top_k": 5}, "--top-k: it was begun with 0, found 5"),
        ({"max_new_tokens": 5}, "--max-new-tokens: it was begun with 1024, found 5"),
        ({"max_context": 5}, "--max-context: it was begun with 4096, found 5"),
        ({"stop": ()}, "--stop: it was begun with 'x', found none"),
        ({"seed": 1}, "--seed: it was begun with 0, found 1"),
        ({"n": 2}, "--n: it was begun with 1, found 2"),
        ({"columns": Columns(prompt="q")}, "--prompt-column: it was begun with prompt, found q"),
        ({"columns": Columns(messages="q")}, "--messages-column: it was begun with messages, found q"),
        ({"columns": Columns(prefix="q")}, "--added-prefix: it was begun with none, found q"),
    ],
)
def test_every_option_of_another_job_is_named(change: dict[str, Any], sentence: str) -> None:
    found = as_read(manifest(OPTIONS, **PLACE))
    assert difference(found, manifest(replace(OPTIONS, **change), **PLACE)) == sentence


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"input": "cd"}, "--input"),
        ({"model": "step-40-cd"}, "--model"),
        ({"format": "parquet"}, "--format"),
        ({"part_rows": 9}, "--part-rows"),
    ],
)
def test_every_place_of_another_job_is_named(change: dict[str, Any], option: str) -> None:
    found = as_read(manifest(OPTIONS, **PLACE))
    assert difference(found, manifest(OPTIONS, **{**PLACE, **change})).startswith(
        f"{option}: it was begun with "
    )


@pytest.mark.parametrize("found", [None, [], {}, {"rltrain_generate": 2}])
def test_another_versions_manifest_is_not_read(found: Any) -> None:
    assert difference(found, manifest(OPTIONS, **PLACE)) == "its manifest is of another version of rltrain"


def test_parts_are_neither_small_nor_large_and_enough_of_them_are_open() -> None:
    assert [rows_of_a_part(rows) for rows in (0, 1, 5000, 200_000, 10**9)] == [64, 64, 64, 200, 4096]
    assert parts_at_once(64, 64) == 32
    assert parts_at_once(64, 4096) == 8
    assert parts_at_once(128, 1) == 64
    for slots in (1, 32, 128):
        for rows in (1, 64, 200, 4096):
            assert parts_at_once(slots, rows) * max(rows, slots) >= 8 * slots


def test_a_meter_shows_the_speed_of_late_and_never_goes_back() -> None:
    now = [0.0]
    meter = Meter(100, 20, lambda: now[0])
    assert meter.line() == "20 of 100 rows"
    assert meter.eta is None
    now[0] = 10.0
    meter.update(40, 1000)
    assert (meter.speed, meter.eta) == (100.0, 30.0)
    assert meter.line() == "40 of 100 rows  100 tokens/s  30 s left"
    meter.update(30, 900)
    assert (meter.done, meter.tokens) == (40, 1000)
    for second in range(11, 60):
        now[0] = float(second)
        meter.update(40, 1000)
    assert meter.speed == 0.0
    assert meter.eta is None
    meter.update(100, 2000)
    assert "left" not in meter.line()
