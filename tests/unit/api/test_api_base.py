"""Quantities and texts: what they stand for, and where they end."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rl_api.base import Address, Image, Quantity, Text, Word, amount


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("500m", Decimal("0.5")),
        ("1k", 1000),
        ("1.5M", 1_500_000),
        ("2G", 2 * 10**9),
        ("3T", 3 * 10**12),
        ("1P", 10**15),
        ("1Ki", 1024),
        ("500Mi", 500 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("1Ti", 2**40),
        ("2Pi", 2**51),
    ],
)
def test_a_quantity_is_a_number(text: str, number: Decimal | int) -> None:
    assert amount(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1e3", "-1", "1 Gi", "1gi", "٣"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        amount(text)


@pytest.mark.parametrize(
    ("text", "good"), [("1Mi", True), ("1023Ki", False), ("1Pi", True), ("1025Ti", False)]
)
def test_a_quantity_of_bytes_has_both_bounds(text: str, good: bool) -> None:
    adapter = TypeAdapter(Quantity)
    if good:
        assert adapter.validate_python(text) == text
    else:
        with pytest.raises(ValidationError, match="too little or too much"):
            adapter.validate_python(text)


@given(st.from_regex(r"[0-9]{1,14}(\.[0-9]{1,8})?(m|[kMGTP]i?)?", fullmatch=True))
def test_every_quantity_is_taken_or_refused(text: str) -> None:
    try:
        taken = TypeAdapter(Quantity).validate_python(text)
    except ValidationError:
        return
    assert 2**20 <= amount(taken) <= 2**50


@pytest.mark.parametrize("kind", [Text, Word, Address, Image])
@pytest.mark.parametrize("text", ["", "a\0b", "a" * 16385, "\ud800"])
def test_texts_end_and_hold_no_nul(kind: object, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


@pytest.mark.parametrize("kind", [Word, Address, Image])
@pytest.mark.parametrize("text", ["a\nb", "a\tb", "a\x1b[2J", "a\x85b"])
def test_names_stand_on_one_line(kind: object, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)
