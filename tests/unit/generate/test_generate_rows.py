"""From a row to its question, its seeds and what is written for it."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_generate.rows import (
    ADDED,
    Answer,
    Columns,
    Outcome,
    Question,
    RowError,
    added,
    plain,
    question,
    seeds,
)

COLUMNS = Columns()
CHAT = [{"role": "user", "content": "2+2="}]


def test_a_text_token_ids_and_a_chat_are_questions() -> None:
    assert question({"prompt": "2+2=", "id": 1}, COLUMNS) == Question("2+2=")
    assert question({"prompt": [1, 2]}, COLUMNS) == Question((1, 2))
    assert question({"prompt": None, "messages": CHAT}, COLUMNS).messages == tuple(CHAT)
    # As parquet has them: each message with all fields that any of them has.
    assert question({"messages": [CHAT[0] | {"name": None}]}, COLUMNS).messages == tuple(CHAT)


def test_columns_have_the_names_that_were_given() -> None:
    named = Columns("question", "talk", "my_")
    assert question({"question": "x", "prompt": 7, "error": 1}, named) == Question("x")
    assert named.added == tuple(f"my_{name}" for name in ADDED)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({}, "found neither of prompt and messages, allowed: one of them"),
        ({"prompt": "x", "messages": CHAT}, "found both of prompt and messages, allowed: one of them"),
        ({"prompt": 7}, "prompt: found 7, allowed: a string, or a list of token ids"),
        ({"prompt": []}, "prompt: found [], allowed: a string, or a list of token ids"),
        ({"prompt": [1, True]}, "prompt: found [1, true], allowed: a string, or a list of token ids"),
        ({"prompt": b"x"}, 'prompt: found "eA==", allowed: a string, or a list of token ids'),
        ({"prompt": "\ud800"}, "allowed: Unicode text"),
        ({"messages": "x"}, 'messages: found "x", allowed: a list of 1 to 2000 messages'),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            'messages[0].role: found "robot", allowed: system',
        ),
        ({"prompt": "x", "error": None}, "error: the row has a column of this name already (--added-prefix)"),
    ],
)
def test_a_row_that_asks_nothing_has_a_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RowError) as error:
        question(row, COLUMNS)
    assert sentence in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.integers(-(2**63), 2**63 - 1), st.randoms())
def test_seeds_depend_on_what_a_row_holds_and_not_on_the_order_of_its_columns(
    row: dict[str, Any], seed: int, draw: Any
) -> None:
    names = list(row)
    draw.shuffle(names)
    other = {name: row[name] for name in names} | {"column that is null here": None}
    found = seeds(seed, row, 3)
    assert seeds(seed, other, 3) == found
    assert seeds(seed, json.loads(json.dumps(row)), 3) == found
    assert len(set(found)) == 3
    assert all(0 <= one < 2**64 for one in found)
    assert seeds(seed, row, 1) == found[:1]
    assert set(seeds(seed + 1, row, 3)).isdisjoint(found)
    assert set(seeds(seed, row | {"another": 1}, 3)).isdisjoint(found)


def test_what_json_cannot_hold_is_written_as_text() -> None:
    when = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    row = {
        "when": when,
        "day": when.date(),
        "long": datetime.timedelta(minutes=2),
        "price": decimal.Decimal("1.50"),
        "raw": b"\x00\xff",
        "pairs": [("a", 1)],
        "odd": complex(1, 2),
    }
    assert plain(row) == {
        "when": "2024-02-29T12:00:00+00:00",
        "day": "2024-02-29",
        "long": 120.0,
        "price": "1.50",
        "raw": "AP8=",
        "pairs": [["a", 1]],
        "odd": "(1+2j)",
    }


def test_added_columns_of_one_answer_and_of_several() -> None:
    two = (Answer("a", "stop", 2), Answer("bc", "length", 3))
    outcomes = [Outcome(two[:1], 4), Outcome(error="no")]
    assert added(outcomes, COLUMNS, 1) == {
        "completion": ["a", None],
        "finish_reason": ["stop", None],
        "prompt_tokens": [4, None],
        "completion_tokens": [2, None],
        "error": [None, "no"],
    }
    several = added([Outcome(two, 4), Outcome(error="no")], COLUMNS, 2)
    assert several["completion"] == [["a", "bc"], None]
    assert several["completion_tokens"] == [[2, 3], None]
    assert several["prompt_tokens"] == [4, None]
