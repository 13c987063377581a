"""CEL expressions of rltrain's own rules in Python, as far as these need it: fields, optional fields, comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Value:
    """An object whose fields are asked for as CEL asks for them."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        return _seen(self._fields[name])

    def opt(self, name: str) -> Optional:
        return Optional(self._fields).opt(name)

    def has(self, name: str) -> bool:
        return name in self._fields


class Optional:
    """What may be absent."""

    def __init__(self, *value: Any) -> None:
        self._value = value

    def opt(self, name: str) -> Optional:
        return Optional(self._value[0][name]) if self._value and name in self._value[0] else Optional()

    def or_value(self, default: Any) -> Any:
        return _seen(self._value[0]) if self._value else default

    def has_value(self) -> bool:
        return bool(self._value)


def _seen(value: Any) -> Any:
    return Value(value) if isinstance(value, Mapping) else value


def evaluate(expression: str, **variables: Any) -> Any:
    """Value of an expression with these variables; ternaries, macros and regular expressions are not known."""
    text = re.sub(r"has\(([\w.]+)\.(\w+)\)", r"\1.has('\2')", expression)
    text = re.sub(r"\.\?(\w+)", r".opt('\1')", text)
    text = text.replace(".orValue(", ".or_value(").replace(".hasValue(", ".has_value(")
    text = re.sub(r"!(?!=)", " not ", text).replace("||", " or ").replace("&&", " and ")
    names = {name: _seen(value) for name, value in variables.items()}
    return eval(re.sub(r" / ", " // ", text), {"__builtins__": {}, "true": True, "false": False}, names)
