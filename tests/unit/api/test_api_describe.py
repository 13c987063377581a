from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pydantic import create_model

from rl_api import Attempt, RLTrainingRun
from rl_api.describe import Type, allowed, choice, found, lookup, nearest, number, suggestion, unknown_field
from rl_api.paths import Path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("spec", "sampler", "replicas"), "a whole number >= 1 and <= 4096"),
        (("spec", "task", "rewards", 3, "weight"), "a number >= -1000000000 and <= 1000000000"),
        (("spec", "task", "args", "anything"), "any value"),
        (("spec", "suspend"), "true or false"),
        (("spec", "task", "evaluation"), "an object with everySteps, samples and maxNewTokens or null"),
        (("spec", "sampler"), "an object"),
        (("metadata", "annotations", "note"), "text"),
    ],
)
def test_fields_are_found_and_described(path: Path, words: str) -> None:
    kind = lookup(RLTrainingRun, path)
    assert kind is not None
    assert allowed(kind) == words


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "samplers"),
        ("spec", "samplers", "replicas"),
        ("spec", "seed", "x"),
        ("spec", "task", "rewards", "first"),
    ],
)
def test_what_is_not_in_the_contract_is_not_found(path: Path) -> None:
    assert lookup(RLTrainingRun, path) is None


def test_nothing_is_suggested_where_there_are_no_fields() -> None:
    path = ("spec", "seed", "x")
    assert suggestion(RLTrainingRun, path) is None
    assert unknown_field(RLTrainingRun, path) == "unknown field"


def test_the_names_of_eight_fields_are_told_and_of_nine_not() -> None:
    eight, nine = (create_model("Many", **dict.fromkeys("abcdefghi"[:n], (int, 0))) for n in (8, 9))
    assert allowed(Type(eight)) == "an object with a, b, c, d, e, f, g and h"
    assert allowed(Type(nine)) == "an object"
    assert unknown_field(eight, ("aa",)) == "unknown field, did you mean a? allowed: a, b, c, d, e, f, g, h"
    assert unknown_field(nine, ("aa",)) == "unknown field, did you mean a?"


def test_types_the_contract_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError, match="no unions but with null"):
        Type(int | str)


def test_times_are_described() -> None:
    kind = lookup(Attempt, ("startTime",))
    assert kind is not None
    assert kind.core is datetime
    assert allowed(kind) == "a time such as 2026-01-31T12:00:00Z or null"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing (null)"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (1e-6, "1e-06"),
        ("two", "'two'"),
        ("", "''"),
        ({}, "an empty object"),
        ({"a": 1}, "an object"),
        ([], "an empty list"),
        ((1,), "a list"),
        ("x" * 58, f"'{'x' * 58}'"),  # 60 characters as written: the longest that is shown whole
        ("x" * 59, f"'{'x' * 39}... (59 characters)"),
        ("x" * 70, f"'{'x' * 39}... (70 characters)"),
        (10**70, f"1{'0' * 39}... (71 characters)"),
    ],
)
def test_values_are_shown_as_a_person_wrote_them(value: Any, words: str) -> None:
    assert found(value) == words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("replica", "replicas"),
        ("Replicas", "replicas"),
        ("max_new_tokens", "maxNewTokens"),
        ("maxnewtoken", "maxNewTokens"),
        ("zzz", None),
        ("", None),
    ],
)
def test_near_misses_are_found(name: str, expected: str | None) -> None:
    assert nearest(name, ["replicas", "maxNewTokens", "pools"]) == expected


def test_numbers_and_choices_are_written_plainly() -> None:
    assert [number(1.0), number(0.5), number(2**32 - 1), number(2.0**53), number(1e300)] == [
        "1",
        "0.5",
        "4294967295",
        "9007199254740992.0",
        "1e+300",
    ]
    assert [choice(["a"]), choice(["a", "b"]), choice(["a", "b", "c"])] == ["a", "a or b", "a, b or c"]
