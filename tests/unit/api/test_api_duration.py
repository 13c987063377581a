from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rl_api import Duration
from rl_api.base import PositiveDuration

ADAPTER = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("given_value", "seconds", "text"),
    [
        ("90s", 90.0, "90s"),
        ("10m", 600.0, "10m"),
        ("1.5h", 5400.0, "90m"),
        ("500ms", 0.5, "500ms"),
        ("1h30m", 5400.0, "90m"),
        ("1m30s", 90.0, "90s"),
        ("2h", 7200.0, "2h"),
        ("0s", 0.0, "0s"),
        ("0.25ms", 0.00025, "0.00025s"),
        (90, 90.0, "90s"),
        (0.1, 0.1, "100ms"),
        (0, 0.0, "0s"),
        (31_536_000, 31_536_000.0, "8760h"),
        ("99999m", 5_999_940.0, "99999m"),
        (Duration(3600), 3600.0, "1h"),
    ],
)
def test_every_form_is_read_and_written_back(given_value: object, seconds: float, text: str) -> None:
    duration = ADAPTER.validate_python(given_value)
    assert duration.seconds == seconds
    assert str(duration) == text
    assert json.loads(ADAPTER.dump_json(duration)) == text
    assert ADAPTER.validate_python(text) == duration


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "10 minutes",
            "",
            "90",
            "s",
            "-5s",
            "1d",
            "1h 30m",
            "1.h",
            ".5s",
            "٣s",
            "1e3s",
            "90S",
            "999999999999h",
            "8761h",
            "1s" * 5,
            "0" * 70 + "1s",
        ),
        *(-1, math.nan, math.inf, True, None, [], {}, 31_536_000.5, 10**400),
    ],
)
def test_what_is_no_duration_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        Duration.parse(wrong)
    with pytest.raises(ValidationError, match="not a duration"):
        ADAPTER.validate_python(wrong)


@given(st.floats(min_value=0.0, max_value=31_536_000.0))
def test_text_gives_the_same_value_back(seconds: float) -> None:
    # Text keeps 12 decimals; shorter times than a picosecond do not occur.
    seconds = round(seconds, 12)
    duration = Duration(seconds)
    assert Duration.parse(str(duration)) == duration


def test_durations_compare_by_length() -> None:
    assert Duration.parse("59s") < Duration.parse("1m") == Duration(60)
    assert repr(Duration(60)) == repr(Duration.parse("1m")) == "Duration(seconds=60.0)"
    assert len({Duration.parse("90m"), Duration.parse("1.5h")}) == 1


def test_a_deadline_is_longer_than_zero() -> None:
    adapter = TypeAdapter(PositiveDuration)
    assert adapter.validate_python("1ms") == Duration(0.001)
    with pytest.raises(ValidationError, match="not longer than zero"):
        adapter.validate_python("0s")
