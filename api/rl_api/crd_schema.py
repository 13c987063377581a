"""Pydantic models to structural OpenAPI v3 schemas, as Kubernetes takes them in a CustomResourceDefinition.

Kubernetes wants every field typed where it stands: no `$ref`, no `anyOf` with null (`nullable` instead), and no
two types in one field but whole number or text.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from rl_api.base import DURATION_TEXT, LONGEST, LONGEST_DURATION_TEXT, MOST_ITEMS, Amount, Duration
from rl_api.describe import Type, fields_of, meanings, type_of, written

Schema = dict[str, Any]
"""A part of a structural schema, as plain data."""

Rule = dict[str, str]
"""One entry of `x-kubernetes-validations`: rule, message or messageExpression, fieldPath."""


@dataclass(frozen=True)
class SchemaWriter:
    """Writes the schema of a model: `write(RunSpec, "spec")`."""

    defaulted: Callable[[str], bool] = lambda path: False
    """Whether the schema gives the field at a path a default; the others say theirs in words."""
    rules: Mapping[str, list[Rule]] = field(default_factory=dict)
    """CEL rules by the path of the object they look at (`spec.task.rewards[]`)."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of a list, by its path, the field that tells its items apart."""
    partial: bool = False
    """Nothing is required: for objects that hold a part of another (the defaults of a profile)."""

    def write(self, model: type[BaseModel], path: str) -> Schema:
        """Schema of `model`, an object with fields, which stands at `path`."""
        fields = fields_of(model)
        properties = {name: self.field(model, name, f"{path}.{name}") for name in fields}
        required = [name for name in fields if fields[name].is_required()]
        schema: Schema = {"type": "object", "properties": properties}
        if required and not self.partial:
            schema["required"] = required
        return schema

    def field(self, model: type[BaseModel], name: str, path: str) -> Schema:
        """Schema of one field of `model`, which stands at `path`, with its description and default."""
        field, words = fields_of(model)[name], meanings(model)[name]
        schema = self._of(type_of(field), path)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, Duration):
            default = str(default)
        # A null stands for a field that is absent.
        default = to_jsonable_python(default, by_alias=True, exclude_none=True)
        if default is not None and self.defaulted(path):
            schema["default"] = {} if isinstance(default, dict) else default
        elif (
            default not in (None, {}, []) and not isinstance(default, dict) and not path.startswith("status.")
        ):
            words += f" Default: {written(default)}."
        return {"description": words, **schema}

    def _of(self, kind: Type, path: str) -> Schema:
        schema = self._bare(kind, path)
        if kind.nullable:
            schema["nullable"] = True
            if "enum" in schema:
                schema["enum"] = [*schema["enum"], None]
        if path in self.rules:
            schema["x-kubernetes-validations"] = list(self.rules[path])
        return schema

    def _bare(self, kind: Type, path: str) -> Schema:
        if get_origin(kind.core) is Literal:
            return {"type": "string", "enum": list(get_args(kind.core))}
        if kind.model is not None:
            return self.write(kind.model, path)
        if kind.is_list:
            return self._list(kind, path)
        if kind.is_mapping:
            return self._mapping(kind, path)
        if kind.core is Duration:
            return _duration(kind)
        schema = {**_SCALARS[kind.core], **_bounds(kind)}
        limits = next((one for one in kind.constraints if isinstance(one, Amount)), None)
        if limits is not None:
            schema["x-kubernetes-validations"] = [_within(limits, kind)]
        return schema

    def _list(self, kind: Type, path: str) -> Schema:
        item = self._of(kind.item, f"{path}[]")
        if kind.item.model is not None and "description" not in item:
            item = {"description": inspect.cleandoc(kind.item.model.__doc__ or ""), **item}
        schema: Schema = {"type": "array", "items": item, "maxItems": kind.bound("max_length") or MOST_ITEMS}
        if kind.fixed_length is not None:
            schema["minItems"] = schema["maxItems"] = kind.fixed_length
        elif kind.bound("min_length"):
            schema["minItems"] = kind.bound("min_length")
        if path.startswith("status."):
            del schema["maxItems"]
        if path in self.keys:
            schema["x-kubernetes-list-type"] = "map"
            schema["x-kubernetes-list-map-keys"] = [self.keys[path]]
        return schema

    def _mapping(self, kind: Type, path: str) -> Schema:
        if kind.item.core is Any:
            most = kind.bound("max_length") or MOST_ITEMS
            # One value to who manages fields: a path for each level would be quadratic in their number.
            free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "maxProperties": most}
            return {**free, "x-kubernetes-map-type": "atomic"}
        schema: Schema = {"type": "object", "additionalProperties": self._of(kind.item, f"{path}.*")}
        pattern = kind.key.bound("pattern")
        if pattern is not None:
            schema["maxProperties"] = kind.bound("max_length") or MOST_ITEMS
            schema["x-kubernetes-validations"] = [
                {
                    "rule": f"self.all(key, size(key) <= {kind.key.bound('max_length')} && "
                    f"key.matches({cel_text(pattern)}))",
                    "message": f"found a key that is not allowed, allowed: {kind.key.words}",
                }
            ]
        return schema


_SCALARS: Final[dict[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
}


def _bounds(kind: Type) -> Schema:
    """Bounds of a number, length and pattern of a text. Exclusive bounds are marks on the others."""
    schema: Schema = {}
    for name, key, exclusive in (
        ("ge", "minimum", None),
        ("gt", "minimum", "exclusiveMinimum"),
        ("le", "maximum", None),
        ("lt", "maximum", "exclusiveMaximum"),
        ("min_length", "minLength", None),
        ("max_length", "maxLength", None),
    ):
        value = kind.bound(name)
        if value is not None:
            schema[key] = int(value) if float(value).is_integer() else value
            if exclusive is not None:
                schema[exclusive] = True
    if kind.bound("pattern") is not None:
        schema["pattern"] = kind.bound("pattern")
        schema.setdefault("maxLength", 253)
    return schema


def _within(limits: Amount, kind: Type) -> Rule:
    """A quantity is between two others."""
    first, last = (f"quantity({cel_text(limit)})" for limit in (limits.least, limits.most))
    words = f"allowed: {kind.words}"
    sentence = cel_text(f"found '%s', {words}")
    return {
        "rule": f"quantity(self).compareTo({first}) >= 0 && quantity(self).compareTo({last}) <= 0",
        "message": words,
        "messageExpression": f"{sentence}.format([self])",
    }


def _duration(kind: Type) -> Schema:
    """Text or a whole number of seconds: Kubernetes has no field of text or any number."""
    words = ", allowed: " + (kind.words or Duration.ALLOWED).replace("a number", "a whole number")
    quoted = "found '%s'"
    positive = (kind.words or "").startswith("a duration > 0")
    shortest, longest = kind.bound("ge"), kind.bound("le") or LONGEST
    text = f"self.matches({cel_text(DURATION_TEXT)}) && duration(self) <= duration('{longest}')"
    text += " && self.matches('[1-9]')" if positive else ""
    number = f"self {'>' if positive else '>='} 0"
    if shortest is not None:
        text += f" && duration(self) >= duration('{shortest}')"
        number = f"self >= {math.ceil(shortest.seconds)}"
    return {
        "x-kubernetes-int-or-string": True,
        "maxLength": LONGEST_DURATION_TEXT,
        "pattern": DURATION_TEXT,
        "minimum": 0,
        "maximum": int(longest.seconds),
        "x-kubernetes-validations": [
            {
                "rule": f"type(self) == int ? {number} : {text}",
                "message": words.removeprefix(", "),
                "messageExpression": f"type(self) == int ? {cel_text('found %d' + words)}.format([self]) : "
                f"{cel_text(quoted + words)}.format([self])",
            }
        ],
    }


def cel_text(text: str) -> str:
    """`text` as a CEL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
