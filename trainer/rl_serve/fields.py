"""Fields of a JSON object, taken one by one; every mistake is an `ApiError` that names field, found and allowed. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_api.printable import printable
from rl_serve.errors import ApiError

_SHOWN: Final = 80
# Of values in one another: no field has so many.
_DEEPEST: Final = 64


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ApiError: it is none.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(
            f"the request's body is no JSON ({printable(error, _SHOWN)})", code="invalid_json"
        ) from None
    if isinstance(found, dict | list) and _is_too_deep(found):
        raise ApiError(
            f"the request's body: found values within more than {_DEEPEST} others, allowed: at most as many",
            code="invalid_json",
        )
    if not isinstance(found, dict):
        raise ApiError(
            f"the request's body: found {shown(found)}, allowed: a JSON object", code="invalid_json"
        )
    return found


def _is_too_deep(found: Any) -> bool:
    level = [found]
    for _ in range(_DEEPEST):
        insides = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for inside in insides for part in inside if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def shown(value: Any) -> str:
    """A value as it stands in a sentence."""
    return printable(json.dumps(value, ensure_ascii=False), _SHOWN)


def wrong(name: str, value: Any, allowed: str, code: str = "invalid_value") -> ApiError:
    """The sentence about a field's value."""
    return ApiError(f"{name}: found {shown(value)}, allowed: {allowed}", param=name, code=code)


def text(name: str, value: Any) -> str:
    """A string that is Unicode text: JSON can write halves of characters, which no tokenizer takes."""
    if not isinstance(value, str):
        raise wrong(name, value, "a string", "invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(
            name, value.encode("utf-8", "replace").decode(), "Unicode text, without lone surrogates"
        ) from None
    return value


class Fields:
    """An object's fields: each is taken by its name, and `end` refuses those that nobody took.

    A field that is null counts as one that is missing. `within`: name of the field that the object is, where it is one.
    """

    def __init__(self, found: Mapping[str, Any], within: str = "") -> None:
        self._left = {name: value for name, value in found.items() if value is not None}
        self._within = within and f"{within}."

    def take(self, name: str) -> Any:
        """A value as it is, None: it is not there."""
        return self._left.pop(name, None)

    def _path(self, name: str) -> str:
        return f"{self._within}{name}"

    def number(self, name: str, default: float, allowed: str, low: float, high: float) -> float:
        """A finite number, `low` and `high` included."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(name, value, allowed, "invalid_type")
        if not low <= value <= high or not math.isfinite(value):
            raise wrong(name, value, allowed)
        return float(value)

    def whole(self, name: str, default: int, low: int, high: int, why: str = "") -> int:
        """A whole number, `low` and `high` included; `why` explains these."""
        value = self.take(name)
        if value is None:
            return default
        allowed = f"a whole number from {low} to {high}{why}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(name, value, allowed, "invalid_type")
        if not low <= value <= high:
            raise wrong(name, value, allowed)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""
        value = self.take(name)
        if not isinstance(value, bool | None):
            raise wrong(name, value, "true or false", "invalid_type")
        return bool(value)

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of them, none of them empty."""
        value = self.take(name)
        if value is None:
            return ()
        allowed = f"a string or a list of at most {most}, each of 1 to {longest} characters"
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise wrong(name, value, allowed, "invalid_type")
        if len(found) > most or not all(0 < len(one) <= longest for one in found):
            raise wrong(name, value, allowed)
        return tuple(text(name, one) for one in found)

    def ignore(self, names: Iterable[str]) -> None:
        """Fields that change nothing about the answer."""
        for name in names:
            self.take(name)

    def only(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Fields that this server does not have: only the values that ask for nothing are allowed."""
        for name, values in neutral.items():
            value = self.take(name)
            if value is not None and value not in values:
                allowed = " or ".join(map(shown, values)) or "null"
                sentence = f"{allowed}: this server does not have it"
                raise wrong(self._path(name), value, sentence, "unsupported_value")

    def end(self) -> None:
        """Refuse what is left."""
        for name in self._left:
            known = self._path(printable(name, _SHOWN))
            raise ApiError(f"{known}: unknown field; take it out", param=known, code="unknown_parameter")
