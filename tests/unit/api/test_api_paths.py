from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.paths import parse_path, render_path, too_deep, touches

NAMES = st.text("abcXYZ_-", min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sampler", ("sampler",)),
        ("sampler.replicas", ("sampler", "replicas")),
        ("task.rewards[0].rule", ("task", "rewards", 0, "rule")),
        ("task.rewards.0.rule", ("task", "rewards", 0, "rule")),
        ("a[1][2]", ("a", 1, 2)),
        ("a.123456789", ("a", 123456789)),  # the longest position
        ("a.1234567890", ("a", "1234567890")),
        ("a.٣", ("a", "٣")),
    ],
)
def test_paths_are_read(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a]0", "[0]", "a[-1]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        parse_path(text)


@given(st.lists(st.one_of(NAMES, st.integers(0, 999)), max_size=6), NAMES)
def test_text_gives_the_same_path_back(rest: list[str | int], first: str) -> None:
    path = (first, *rest)
    assert parse_path(render_path(path)) == path


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (1, None),
        ({"a": [1]}, None),
        ({"a": [{}], "b": [[]]}, None),  # what is empty holds nothing
        ({"a": [[1]]}, ("a", 0)),
        ([[1], [2, {"a": "text"}]], (1, 1)),
    ],
)
def test_what_lies_too_deep(value: object, where: tuple[str | int, ...] | None) -> None:
    """Within two others, nothing more."""
    assert too_deep(value, 2) == where


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("a",), ("a", "b"), True),
        (("a", "b"), ("a",), True),
        (("a", "b"), ("a", "b"), True),
        ((), ("a",), True),
        (("a", "b"), ("a", "c"), False),
        (("a", 0), ("a", 1), False),
    ],
)
def test_paths_touch_when_one_is_within_the_other(
    one: tuple[str | int, ...], other: tuple[str | int, ...], expected: bool
) -> None:
    assert touches(one, other) is expected
