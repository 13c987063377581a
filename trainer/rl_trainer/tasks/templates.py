"""`promptTemplate` and `answerTemplate`: Python's format strings over question, answer and metadata. Pure.

After the colon, besides Python's own format specs, stand *views*, separated by `|` and applied from left to
right:

    {metadata[original_numbers]:number|join , }    ['5.0', '2.50'] -> 5, 2.5

`join SEP` joins a list, SEP being everything after the first space; `number` writes numbers in their shortest
form; `strip`, `lower`, `upper`, `reverse` and `first` do what they say; `json` writes JSON. All but `join`,
`reverse`, `first` and `json` work on every element of a list. A dot is the same as brackets:
{metadata.direction}.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from rl_api.errors import TaskError


def _number(value: Any) -> str:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{value!r} is not a finite number")
    number = number.normalize()
    return format(number if number else Decimal(0), "f")


_ELEMENTWISE: dict[str, Callable[[Any], str]] = {
    "number": _number,
    "strip": lambda value: str(value).strip(),
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
}
VIEWS = ("join", "json", "first", "reverse", *_ELEMENTWISE)
"""Names of all views."""


_FIELD = re.compile(r"([^.\[\]]+)((?:\.[^.\[\]]+|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\[\]]+)\]")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if _is_list(value):
            yield from _flat(value)
        else:
            yield value


def apply_view(value: Any, view: str) -> Any:
    """One view (name and, for join, separator) applied to a value; ValueError when it cannot be."""
    name, _, argument = view.partition(" ")
    if name == "join":
        if not _is_list(value):
            raise ValueError(f"join needs a list, not {type(value).__name__}")
        return argument.join(str(element) for element in _flat(value))
    if name == "json":
        return json.dumps(value, ensure_ascii=False, default=str)
    if name in ("first", "reverse"):
        if not (_is_list(value) or isinstance(value, str)):
            raise ValueError(f"{name} needs a list or text, not {type(value).__name__}")
        if name == "reverse":
            return value[::-1]
        if not value:
            raise ValueError("first needs something that is not empty")
        return value[0]
    view_of = _ELEMENTWISE[name]
    if _is_list(value):
        return [apply_view(element, view) for element in value]
    return view_of(value)


def _look_up(value: Any, key: str, path: str) -> Any:
    if isinstance(value, Mapping):
        for candidate in (key, int(key) if key.isdecimal() else key):
            if candidate in value:
                return value[candidate]
        raise ValueError(f"{path} has no {key!r} but {', '.join(sorted(map(str, value))) or 'nothing'}")
    if key.isdecimal() and (_is_list(value) or isinstance(value, str)):
        if int(key) < len(value):
            return value[int(key)]
        raise ValueError(f"{path} has {len(value)} elements, so no number {key}")
    raise ValueError(f"{path} is {type(value).__name__} and has no {key!r}")


class _Formatter(string.Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        field = _FIELD.fullmatch(field_name)
        if field is None:
            raise ValueError(f"{{{field_name}}} is not a field such as {{metadata[name]}}")
        path = field.group(1)
        value = _look_up(kwargs, path, "the template's keys")
        for dotted, bracketed in _STEP.findall(field.group(2)):
            value = _look_up(value, dotted or bracketed, path)
            path = f"{path}[{dotted or bracketed}]"
        return value, path

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.partition(" ")[0].partition("|")[0] not in VIEWS:
            return str(format(value, format_spec))
        for view in format_spec.split("|"):
            if view.partition(" ")[0] not in VIEWS:
                raise ValueError(f"unknown view {view!r}, allowed: {', '.join(VIEWS)}")
            value = apply_view(value, view)
        return str(value)


class Template:
    """One template of the task: the format string, and the field it comes from, for errors."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self._formatter = _Formatter()

    def render(self, question: str, answer: str | None, metadata: Any) -> str:
        """The text for one item; a missing answer reads as empty. TaskError: it lacks what the template asks for."""
        keys = {"question": question, "answer": "" if answer is None else answer, "metadata": metadata}
        try:
            return self._formatter.vformat(self._text, (), keys)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise TaskError(f"{self._path}: {error} (template {self._text!r})") from None
