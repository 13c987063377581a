"""Text of others' reaches a terminal, a status or a page without anything that acts there."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_api.printable import printable

ANY = st.text(st.characters(exclude_categories=()))


@given(ANY)
@example("\x1b]0;title\x07\x9b31m\x7f\r\n\u202egpj.exe\u2066\u200b\ufeff\ud800\u2028\u2029\x85\0")
def test_nothing_that_is_left_acts_on_what_shows_it(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()
    assert len(shown) == len(text) and printable(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/run/step-000010", "Größe 訓練 обучение ไทย نص 🙂", "a b", "combine\u0301d", "\ufffd"],
)
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


def test_each_sign_that_acts_is_shown_as_one_that_does_not() -> None:
    assert printable("a\x1b[31mb\tc\nd\u202ee") == "a\ufffd[31mb c d\ufffde"


@given(ANY, st.integers(1, 20))
def test_a_limit_is_kept(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown == printable(text) if len(text) <= limit else shown.endswith("…")


def test_anything_can_be_shown() -> None:
    assert printable(10**20) == "1" + 20 * "0"
    assert printable(None) == "None"
