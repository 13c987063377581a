"""What a field takes, in words, read from the models: for errors and for the reference."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_api.base import Allowed, Duration
from rl_api.paths import Path, render_path

_SHORT_LIST = 8
"""Most field names a sentence lists."""


class Type:
    """A field's type taken apart: `core` without null, its constraints, whether null is allowed, and its default."""

    def __init__(self, annotation: Any, metadata: Iterable[Any] = (), default: Any = None) -> None:
        """Take `annotation` apart; `metadata` holds the constraints that pydantic has split off already."""
        self.nullable, self.default = False, default
        self.constraints: list[Any] = []
        self._add(metadata)
        while (origin := get_origin(annotation)) in (Annotated, Union, types.UnionType):
            if origin is Annotated:
                annotation, *more = get_args(annotation)
                self._add(more)
                continue
            members = [member for member in get_args(annotation) if member is not type(None)]
            self.nullable = self.nullable or len(members) < len(get_args(annotation))
            if len(members) != 1:
                raise TypeError(f"the contract has no unions but with null: {annotation}")
            annotation = members[0]
        self.core: Any = annotation

    def _add(self, metadata: Iterable[Any]) -> None:
        for item in metadata:
            self.constraints.extend(item.metadata if isinstance(item, FieldInfo) else [item])

    @property
    def model(self) -> type[BaseModel] | None:
        """The model class, if this is an object with fields."""
        return self.core if isinstance(self.core, type) and issubclass(self.core, BaseModel) else None

    @property
    def is_list(self) -> bool:
        """Whether this is a list (a tuple or list of Python)."""
        return get_origin(self.core) in (tuple, list)

    @property
    def is_mapping(self) -> bool:
        """Whether this is an object with free keys."""
        return get_origin(self.core) is dict

    @property
    def item(self) -> Type:
        """Type of a list's items or of a mapping's values."""
        arguments = get_args(self.core)
        return Type(arguments[1] if self.is_mapping else arguments[0])

    def inside(self, part: str | int) -> Type | None:
        """Type of the field, item or value that `part` names; None where there is none."""
        if self.model is not None:
            field = fields_of(self.model).get(str(part))
            return type_of(field) if field is not None else None
        if self.is_mapping or (self.is_list and isinstance(part, int)):
            return self.item
        return self if self.core is Any else None

    @property
    def key(self) -> Type:
        """Type of a mapping's keys."""
        return Type(get_args(self.core)[0])

    @property
    def fixed_length(self) -> int | None:
        """Length of a list whose length is given by its type, else None."""
        arguments = get_args(self.core)
        return len(arguments) if get_origin(self.core) is tuple and Ellipsis not in arguments else None

    @property
    def words(self) -> str | None:
        """What `Allowed` says of its values; None where types and bounds say enough."""
        return next((c.text for c in self.constraints if isinstance(c, Allowed)), None)

    def bound(self, name: str) -> Any:
        """Value of the constraint `name` (ge, gt, le, lt, min_length, max_length, pattern), or None."""
        return next((getattr(c, name) for c in self.constraints if getattr(c, name, None) is not None), None)


def type_of(field: FieldInfo) -> Type:
    """The type of a model's field."""
    return Type(field.annotation, field.metadata, field.default)


@cache
def fields_of(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """The model's fields by the name they have in files."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


@cache
def meanings(model: type[BaseModel]) -> Mapping[str, str]:
    """What is written below each field of the model, on one line, by the name that the field has in files."""
    (base,) = model.__bases__
    found = dict(meanings(base)) if issubclass(base, BaseModel) and base.model_fields else {}
    (tree,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(tree, ast.ClassDef)
    for statements in pairwise(tree.body):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[model.model_fields[name].alias or name] = " ".join(text.split())
    return found


def lookup(model: type[BaseModel], path: Path) -> Type | None:
    """Type of the field that `path` names, seen from `model`; None where there is none."""
    found: Type | None = Type(model)
    for part in path:
        found = found.inside(part) if found is not None else None
    return found


def number(value: float) -> str:
    """A bound as a person writes it: 1 rather than 1.0."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(value)


def written(value: Any) -> str:
    """A default as a person writes it: text without quotes, 1e-6 rather than 1e-06."""
    return value if isinstance(value, str) and value else re.sub(r"e-0(\d)", r"e-\1", json.dumps(value))


def range_words(kind: Type) -> str:
    """The bounds of a number, such as `>= 1 and <= 10`; empty when there are none."""
    signs = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
    return " and ".join(
        f"{sign} {number(kind.bound(name))}" for name, sign in signs if kind.bound(name) is not None
    )


def choice(options: Sequence[str], last: str = "or") -> str:
    """Options as a person lists them: `a, b or c`."""
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} {last} {options[-1]}"


def allowed(kind: Type) -> str:
    """The values that `kind` takes, to be read after "allowed:"."""
    return _allowed(kind) + (" or null" if kind.nullable else "")


def _allowed(kind: Type) -> str:
    if kind.words is not None:
        return kind.words
    if get_origin(kind.core) is Literal:
        return choice([str(option) for option in get_args(kind.core)])
    if kind.is_list:
        return _allowed_list(kind)
    if kind.is_mapping:
        most = kind.bound("max_length")
        return f"an object with at most {most} fields" if most is not None else "an object"
    if kind.model is not None:
        names = list(fields_of(kind.model))
        return f"an object with {choice(names, 'and')}" if len(names) <= _SHORT_LIST else "an object"
    words = _SCALARS[kind.core]
    bounds = range_words(kind)
    return f"{words} {bounds}" if bounds else words


_SCALARS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Duration: Duration.ALLOWED,
    datetime: "a time such as 2026-01-31T12:00:00Z",
    Any: "any value",
}


def _allowed_list(kind: Type) -> str:
    item = allowed(kind.item)
    if kind.fixed_length is not None:
        return f"a list of {kind.fixed_length} items, each {item}"
    least, most = kind.bound("min_length"), kind.bound("max_length")
    if most is None:
        return f"a list{' of one or more items' if least else ''}, each {item}"
    return f"a list of {f'{least} to' if least else 'at most'} {most} items, each {item}"


def found(value: object) -> str:
    """A value from a file as a person knows it, to be read after "found"."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(str(value))} characters)"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was most likely meant to be; None if none is near."""
    by_plain = {_plain(candidate): candidate for candidate in names}
    matches = difflib.get_close_matches(_plain(name), by_plain, cutoff=0.65)
    return by_plain[matches[0]] if matches else None


def _all_paths(model: type[BaseModel], prefix: Path = ()) -> Iterator[Path]:
    for name, field in fields_of(model).items():
        if name == "status":  # nobody writes it
            continue
        yield (*prefix, name)
        inner = type_of(field).model
        if inner is not None:
            yield from _all_paths(inner, (*prefix, name))


def suggestion(root: type[BaseModel], path: Path) -> str | None:
    """What an unknown field was most likely meant to be: a field beside it, or its name elsewhere."""
    parent = lookup(root, path[:-1])
    name = str(path[-1])
    if parent is None or parent.model is None:
        return None
    beside = nearest(name, fields_of(parent.model))
    elsewhere = [other for other in _all_paths(root) if _plain(str(other[-1])) == _plain(name)]
    if beside is not None and _plain(beside) == _plain(name):
        return beside
    if elsewhere:
        return choice([render_path(other) for other in elsewhere][:3])
    return beside


def unknown_field(root: type[BaseModel], path: Path) -> str:
    """Sentence about the field at `path`, which `root` does not have: what was meant, what is allowed."""
    parent = lookup(root, path[:-1])
    names = list(fields_of(parent.model)) if parent is not None and parent.model is not None else []
    meant = suggestion(root, path)
    words = "unknown field" + (f", did you mean {meant}?" if meant else "")
    if 0 < len(names) <= _SHORT_LIST or (names and not meant):
        words += f"{'' if meant else ','} allowed: {', '.join(names)}"
    return words
