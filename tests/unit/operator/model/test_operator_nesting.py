"""What is nested more deeply than Python's recursive functions go."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from operator_worlds import SETTINGS, make_run

from rl_operator.model.nesting import DEEPEST, loads, shallow
from rl_operator.plan.effective import plan
from rl_operator.plan.refused import Refused


def nested(levels: int, kind: str = "object") -> str:
    before, after = ('{"a": ', "}") if kind == "object" else ("[", "]")
    return before * levels + "1" + after * levels


def levels_of(value: Any) -> int:
    levels = 0
    while isinstance(value, dict | list):
        levels, value = levels + 1, next(iter(value.values() if isinstance(value, dict) else value))
    return levels


@pytest.mark.parametrize("kind", ["object", "list"])
@pytest.mark.parametrize("levels", [1_200, 20_000])
def test_one_value_that_is_too_deep_does_not_take_the_others_along(kind: str, levels: int) -> None:
    odd = ["a", 'x]"}[', "c\\", '\\"{', "\\\\", '"']
    items = [json.dumps({"name": name}) for name in odd]
    items.insert(1, f'{{"deep": {nested(levels, kind)}, "name": {json.dumps(odd[1])}}}')
    text = f'{{"items": [{", ".join(items)}]}}'
    found = loads(text.encode())
    assert [item["name"] for item in found["items"]] == [odd[0], odd[1], *odd[1:]]
    assert levels_of(found["items"][1]["deep"]) == DEEPEST - 3
    with pytest.raises(RecursionError):
        json.loads(text)


def test_everything_else_is_as_it_is() -> None:
    for text in ('{"a": [1, {"b": null}], "c": "x"}', nested(600), "[]", "3"):
        assert loads(text.encode()) == json.loads(text)
    with pytest.raises(ValueError, match="Expecting"):
        loads(b"[" * 5000)


def test_a_text_is_cut_as_its_bytes_are() -> None:
    text = f'["é", {nested(20_000)}, "\ud800"]'
    first, deep, last = loads(text)
    assert (first, levels_of(deep), last) == ("é", DEEPEST - 1, "?")


@pytest.mark.parametrize("kind", ["object", "list"])
@pytest.mark.parametrize("levels", [DEEPEST, DEEPEST + 1, 300, 700])
def test_data_is_cut_only_where_it_is_too_deep(levels: int, kind: str) -> None:
    value = {"a": [1, "x"], "deep": json.loads(nested(levels - 1, kind))}
    cut = shallow(value)
    assert cut["a"] == [1, "x"]
    assert levels_of(cut["deep"]) == DEEPEST - 1
    assert (cut is value) is (levels == DEEPEST)


@pytest.mark.parametrize("levels", [62, 255, 700, 1_200])
def test_a_run_that_is_too_deep_is_refused_with_a_sentence(levels: int) -> None:
    args = shallow(loads(nested(levels).encode()))
    found = plan(
        make_run() | {"spec": make_run()["spec"] | {"task": {"name": "x", "args": args}}}, [], SETTINGS
    )
    assert isinstance(found, Refused)
    assert (
        found.message == "spec.task.args: found values nested more than 64 levels deep, allowed: at most 64"
    )


def test_a_cpu_that_no_node_has_is_refused_with_a_sentence() -> None:
    found = plan(make_run({"sampler": {"resources": {"cpu": 1e308}}}), [], SETTINGS)
    assert isinstance(found, Refused)
    assert found.message.startswith("spec.sampler.resources.cpu: found 1e+308, allowed: ")


def test_odd_bytes_and_endless_numbers_do_not_take_the_others_along() -> None:
    digits = "9" * 5_000
    odd = (
        b'{"items": [{"a": "\xff\xfe"}, {"a": '
        + digits.encode()
        + b'}, {"a": -'
        + digits.encode()
        + b'}, {"a": 12}]}'
    )
    with pytest.raises(ValueError, match="decode"):
        json.loads(odd)
    assert [one["a"] for one in loads(odd)["items"]] == ["\ufffd\ufffd", math.inf, -math.inf, 12]
    assert loads(f"[{digits[:640]}]") == [int(digits[:640])]
