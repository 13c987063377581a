"""The built-in reward rules: (completion, answer) -> how right, from 0 to 1. Pure.

All of them ignore white space around the completion and the answer.
"""

from __future__ import annotations

import re
from decimal import Decimal

import regex  # type: ignore[import-untyped]

TOLERANCE = Decimal("1e-6")
"""Two numbers that differ by no more than this are equal."""

# A minus sign belongs to the number unless something it could be subtracted from stands before it: 3-2 ends with 2.
_NUMBER = re.compile(
    r"(?:(?<![\w.)\]])[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\w))?",
    re.ASCII,
)


def exact_match(completion: str, answer: str) -> bool:
    """Whether the two are the same text."""
    return completion.strip() == answer.strip()


def last_number(text: str) -> Decimal | None:
    """The last number in a text: 1,234 and 1e-3 are numbers, as is the -2 of `= -2`; None without any."""
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return None if last is None else Decimal(last.group().replace(",", ""))


def number_matches(completion: str, answer: str) -> bool:
    """Whether the last numbers of the two are equal within `TOLERANCE`; ValueError when the answer has no number."""
    wanted = last_number(answer)
    if wanted is None:
        raise ValueError(f"the answer {answer!r} has no number")
    found = last_number(completion)
    return found is not None and abs(found - wanted) <= TOLERANCE


def fraction_right(completion: str, answer: str) -> float:
    """Share of characters that are right and in the right place, of the longer text; 1 only if equal."""
    completion, answer = completion.strip(), answer.strip()
    longest = max(len(completion), len(answer))
    if longest == 0:
        return 1.0
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / longest


def pattern_matches(pattern: regex.Pattern[str], completion: str, answer: str, seconds: float) -> bool:
    """Rule regex: whether the pattern is found, and its last match's first group, if it has one, is the answer, if any.

    Of the `regex` package: the standard library's matcher cannot be stopped, and patterns such as (a+)+b take for ever.
    TimeoutError when it is not decided after `seconds`.
    """
    last = None
    for last in pattern.finditer(completion, timeout=seconds):  # noqa: B007
        pass
    if last is None:
        return False
    if pattern.groups == 0 or not answer.strip():
        return True
    return exact_match(last.group(1) or "", answer)
