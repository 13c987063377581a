"""Values of an object as they are shown, whatever wrote it: what is not of its kind is not known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.printable import printable

_LONGEST: Final = 1000
"""Characters of a sentence of others."""

_GREATEST: Final = 1e15
"""A number beyond it is none that an object of ours can have."""


def sentence(text: object) -> str:
    """One line, whatever it was; terminals must not be steered by what a container wrote."""
    return printable(" ".join(text.split()), _LONGEST) if isinstance(text, str) else ""


def number(value: object) -> float | None:
    """A number that can be one of an object's; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_GREATEST <= value <= _GREATEST else None  # NaN is not, either


def whole(value: object) -> int | None:
    """A whole number from 0 on; None: it is none."""
    found = number(value)
    return None if found is None or found < 0 else int(found)


def mapping(value: object) -> Mapping[str, Any]:
    """An object; an empty one where it is none."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def instant(value: object) -> datetime | None:
    """A time, of UTC where it does not say; None: it is none."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
