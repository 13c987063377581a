"""Kinds of fields that statuses have."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field

MOST: Final = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exact."""


def _with_zone(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    return time


Count = Annotated[int, Field(ge=0, le=MOST)]
"""A number of steps, attempts or generations."""

Time = Annotated[datetime, AfterValidator(_with_zone)]
"""A moment. One without a zone is none: the API server would not store it."""
