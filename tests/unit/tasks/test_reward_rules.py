import time
from decimal import Decimal

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rl_trainer.tasks.rules import exact_match, fraction_right, last_number, number_matches, pattern_matches


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [("42", "42", True), (" 42\n", "42", True), ("4 2", "42", False), ("", "", True), ("A", "a", False)],
)
def test_exact_match(completion, answer, right):
    assert exact_match(completion, answer) is right


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", "42"),
        ("12 apples, 7 pears", "7"),
        ("= -2", "-2"),
        ("3-2", "2"),
        ("(3)-2", "2"),
        ("x = -2", "-2"),
        ("$1,234.50", "1234.50"),
        ("1, 2, 3", "3"),
        ("1e-3", "0.001"),
        ("5e", "5"),
        (".5", "0.5"),
        ("#### 72", "72"),
        ("1234,567", "567"),
        ("+7", "7"),
        ("no number", None),
        ("", None),
        ("-", None),
        ("٣", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=4))
def test_a_number_is_found_at_the_end_of_a_sentence(number):
    assert last_number(f"first 1, then 2: {number:f}.") == number


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("It is 7.0", "7", True),
        ("7.0000009", "7", True),
        ("7.000002", "7", False),
        ("seven", "7", False),
        ("so 1,000", "The answer: 1000", True),
        ("1" + "0" * 40, "1" + "0" * 39 + "1", False),
    ],
)
def test_number_matches(completion, answer, right):
    assert number_matches(completion, answer) is right


def test_number_needs_a_number_in_the_answer():
    with pytest.raises(ValueError, match="the answer 'blue' has no number"):
        number_matches("7", "blue")


@pytest.mark.parametrize(
    ("completion", "answer", "share"),
    [
        ("1234", "1234", 1),
        ("1243", "1234", 0.5),
        ("12", "1234", 0.5),
        ("123456", "1234", 4 / 6),
        ("", "1", 0),
        ("", "", 1),
    ],
)
def test_fraction_right(completion, answer, share):
    assert fraction_right(completion, answer) == pytest.approx(share)


@given(st.text("ab ", max_size=8), st.text("ab ", max_size=8))
def test_fraction_is_one_only_for_an_exact_match(completion, answer):
    share = fraction_right(completion, answer)
    assert 0 <= share <= 1
    assert (share == 1) == exact_match(completion, answer)


@pytest.mark.parametrize(
    ("pattern", "completion", "answer", "right"),
    [
        (r"^\d+$", "42", "", True),
        (r"^\d+$", "42x", "", False),
        (r"<answer>(.*?)</answer>", "<answer> 4 </answer>", "4", True),
        (r"<answer>(.*?)</answer>", "<answer>1</answer><answer>4</answer>", "4", True),
        (r"<answer>(.*?)</answer>", "<answer>4</answer><answer>1</answer>", "4", False),
        (r"<answer>(.*?)</answer>", "4", "4", False),
        (r"(\d+)", "anything 9", "", True),
        (r"x(\d+)?", "x", "4", False),
    ],
)
def test_pattern(pattern, completion, answer, right):
    assert pattern_matches(regex.compile(pattern), completion, answer, 1.0) is right


def test_a_pattern_that_takes_for_ever_is_stopped():
    started = time.thread_time()
    with pytest.raises(TimeoutError):
        pattern_matches(regex.compile(r"(a|aa)+$"), "a" * 80 + "b", "", 0.05)
    assert time.thread_time() - started < 5
