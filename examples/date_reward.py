"""A reward function of your own: `jsonl-and-function.yaml` names it as `date_reward:is_a_date`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_a_date(prompt: Mapping[str, Any], completion: str, answer: str) -> float:
    """1 for a date of the calendar, written 2024-02-29, right or wrong; 0.5 for 2023-02-29; else 0.

    Args:
        prompt: `text`, `answer`, `index`, `item` (all fields of the line), `messages` and `turns`.
        completion: what the model wrote.
        answer: the line's answer; not looked at here.
    """
    text = completion.strip()
    if not _ISO.fullmatch(text):
        return 0.0
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return 0.5
    return 1.0
