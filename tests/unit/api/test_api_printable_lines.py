"""Lines that others wrote, as they may be shown."""

from __future__ import annotations

import pytest
from hostile import HOSTILE, TRICKS, steering
from hypothesis import given
from hypothesis import strategies as st

from rl_api.printable import printable_lines


@given(st.one_of(HOSTILE, st.text()))
def test_nothing_steers(text: str) -> None:
    shown = printable_lines(text)
    assert steering(shown) == []
    assert printable_lines(shown) == shown
    assert shown.count("\n") <= text.count("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text: 3 %, \u00fc, \u4f60\u597d, \U0001f52c", None),
        ("a\tb\nc", None),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b\x1b[m[31m", "\ufffd[31m"),
        ("one\r\ntwo", "one \ntwo"),
        ("exe.\u202etxt", "exe.\ufffdtxt"),
        (12, "12"),
    ],
)
def test_examples(text: object, shown: str | None) -> None:
    assert printable_lines(text) == (text if shown is None else shown)


@pytest.mark.parametrize("trick", TRICKS)
def test_the_tricks_are_tricks(trick: str) -> None:
    assert steering(trick) or "<script>" in trick
