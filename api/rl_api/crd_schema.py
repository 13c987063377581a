"""Pydantic models to structural OpenAPI v3 schemas, as Kubernetes takes them in a CustomResourceDefinition.

Kubernetes wants every field typed where it stands: no `$ref`, no `anyOf` with null (`nullable` instead), and no
two types in one field but whole number or text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_api.base import Duration, Model
from rl_api.describe import Type, fields_of, type_of

Schema = dict[str, Any]
"""A part of a structural schema, as plain data."""

Rule = dict[str, str]
"""One entry of `x-kubernetes-validations`: rule, message or messageExpression, fieldPath."""

ListType = tuple[str, ...]
"""Keys of a list's items that tell them apart; empty for a list that is one value."""

_MOST_ITEMS: Final = 64
"""Longest list and biggest free object: the API server counts with it what a rule may cost."""

_LONGEST_DURATION: Final = 64

_DURATION_TEXT = (
    r"^([0-9]{1,12}(\\.[0-9]{1,12})?(ms|s|m|h))+$"  # as in CEL, where a backslash is written twice
)


class SchemaWriter:
    """Writes the schema of a model: `write(RunSpec, "spec")`.

    `defaulted(path)` says whether the schema gives the field a default; the others say theirs in words.
    `rules` holds the CEL rules by the path of the object they look at (`spec.task.rewards[]`), and `keys` the
    names by which the items of a list are told apart. `partial` drops what is required, for objects that hold
    a part of another (the defaults of a profile).
    """

    def __init__(
        self,
        defaulted: Callable[[str], bool] = lambda path: False,
        rules: Mapping[str, list[Rule]] | None = None,
        keys: Mapping[str, ListType] | None = None,
        partial: bool = False,
    ) -> None:
        self._defaulted = defaulted
        self._rules = rules or {}
        self._keys = keys or {}
        self._partial = partial

    def write(self, model: type[BaseModel], path: str) -> Schema:
        """Schema of `model`, an object with fields, which stands at `path`."""
        properties = {
            name: self.field(field, f"{path}.{name}".lstrip(".")) for name, field in fields_of(model).items()
        }
        required = [name for name, field in fields_of(model).items() if field.is_required()]
        schema: Schema = {"type": "object", "properties": properties}
        if required and not self._partial:
            schema["required"] = required
        return schema

    def field(self, field: FieldInfo, path: str) -> Schema:
        """Schema of one field with its description and default."""
        schema = self._of(type_of(field), path)
        words = field.description or ""
        default = None if field.is_required() else plain(field.get_default(call_default_factory=True))
        if default is not None and self._defaulted(path):
            schema["default"] = {} if isinstance(default, dict) else default
        elif default not in (None, {}, []) and not isinstance(default, dict) and not self._status(path):
            words += f" Default: {_number_words(default)}."
        return {"description": words, **schema} if words else schema

    @staticmethod
    def _status(path: str) -> bool:
        return path == "status" or path.startswith("status.")

    def _of(self, kind: Type, path: str) -> Schema:
        schema = self._bare(kind, path)
        if kind.nullable:
            schema["nullable"] = True
            if "enum" in schema:
                schema["enum"] = [*schema["enum"], None]
        if path in self._rules:
            schema["x-kubernetes-validations"] = list(self._rules[path])
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
        return {**_SCALARS[kind.core], **_bounds(kind)}

    def _list(self, kind: Type, path: str) -> Schema:
        item = self._of(kind.item, f"{path}[]")
        if kind.item.model is not None and "description" not in item:
            item = {"description": inspect.cleandoc(kind.item.model.__doc__ or ""), **item}
        schema: Schema = {"type": "array", "items": item, "maxItems": _MOST_ITEMS}
        if kind.fixed_length is not None:
            schema["minItems"] = schema["maxItems"] = kind.fixed_length
        elif kind.bound("min_length"):
            schema["minItems"] = kind.bound("min_length")
        if self._status(path):
            del schema["maxItems"]
        if path in self._keys:
            schema["x-kubernetes-list-type"] = "map"
            schema["x-kubernetes-list-map-keys"] = list(self._keys[path])
        return schema

    def _mapping(self, kind: Type, path: str) -> Schema:
        if kind.item.core is Any:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema: Schema = {"type": "object", "additionalProperties": self._of(kind.item, f"{path}.*")}
        pattern = kind.key.bound("pattern")
        if pattern is not None:
            schema["maxProperties"] = _MOST_ITEMS
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


def _duration(kind: Type) -> Schema:
    """Text or a whole number of seconds: Kubernetes has no field of text or any number."""
    words = ", allowed: " + (kind.words or Duration.ALLOWED).replace("a number", "a whole number")
    quoted = "found '%s'"
    positive = kind.words is not None
    text = f"self.matches('{_DURATION_TEXT}')" + (" && self.matches('[1-9]')" if positive else "")
    number = "self > 0" if positive else "self >= 0"
    return {
        "x-kubernetes-int-or-string": True,
        "maxLength": _LONGEST_DURATION,
        "pattern": _DURATION_TEXT.replace(r"\\", "\\"),
        "minimum": 0,
        "x-kubernetes-validations": [
            {
                "rule": f"type(self) == int ? {number} : {text}",
                "message": words.removeprefix(", "),
                "messageExpression": f"type(self) == int ? {cel_text('found %d' + words)}.format([self]) : "
                f"{cel_text(quoted + words)}.format([self])",
            }
        ],
    }


def plain(value: Any) -> Any:
    """A default as plain data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, tuple | list):
        return [_item(item) for item in value]
    return str(value) if isinstance(value, Duration) else value


def _item(value: Any) -> Any:
    """An item of a default list without its nulls, which stand for absent fields."""
    if isinstance(value, Model):
        return {name: field for name, field in plain(value).items() if field is not None}
    return plain(value)


def _number_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace("e-0", "e-")


def cel_text(text: str) -> str:
    """`text` as a CEL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
