from __future__ import annotations

from datetime import datetime

import pytest
from operator_worlds import NOW

from rl_operator.model.times import parse_time


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01T12:00:00Z", NOW),
        ("2026-03-01T12:00:00", NOW),
        ("2026-03-01T14:00:00+02:00", NOW),
        ("2026-03-01T12:00:00.000000Z", NOW),
        ("soon", None),
        (None, None),
        (5, None),
    ],
)
def test_times(text: object, time: datetime | None) -> None:
    assert parse_time(text) == time
