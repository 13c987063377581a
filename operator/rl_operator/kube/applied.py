"""Nulls of a run's spec: those that a person applied with kubectl, and those that came too late. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from rl_api.crd_rules import MUTABLE
from rl_api.describe import fields_of, type_of
from rl_api.run import RunSpec

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_MUTABLE: Final = tuple(f"{path}." for path in MUTABLE)
_ABSENT, _NOWHERE = object(), object()


class Nulls(NamedTuple):
    """A spec with the nulls that count."""

    spec: object
    paths: list[str]
    """Its fields that are null."""
    late: list[str]
    """Fields for which a null came when the run had begun with another value: it does not count."""


def with_nulls(spec: object, annotations: Mapping[str, str], begun: Collection[str] | None = None) -> Nulls:
    """The spec of a run with the nulls that were applied, such as `checkpoint: null`, which means no checkpoints.

    The API server keeps a null, but kubectl's client-side apply takes it for a field to be removed when it applies the
    same file again. What the file said is in its annotation. Nulls of fields that take none mean nothing. The API server's
    rules about what may not change see none of this: what was null when the run began (`begun`; None: it has not) stays so,
    and nothing else becomes so. A spec that is no object has no nulls.
    """
    if not isinstance(spec, dict):
        return Nulls(spec, [], [])
    told = _told(annotations.get(LAST_APPLIED, ""))
    there = {path: _at(spec, path) for path in (*_nullable(), *(begun or ()))}
    asked = [
        path
        for path in _nullable()
        if there[path] is None or (there[path] is _ABSENT and _at(told, path) is None)
    ]
    late: list[str] = []
    kept: list[str] = []
    if begun is not None:
        late = [path for path in asked if path not in begun and not f"{path}.".startswith(_MUTABLE)]
        kept = [path for path in begun if there[path] is None or there[path] is _ABSENT]
    paths = list(dict.fromkeys([*kept, *(path for path in asked if path not in late)]))
    for path in (*paths, *late):
        spec = _with(spec, path, _ABSENT if path in late else None)
    return Nulls(spec, paths, late)


def _told(text: str) -> Mapping[str, Any]:
    """The spec of the last applied file, where it has nulls."""
    if "null" not in text:
        return {}
    try:
        told = json.loads(text)["spec"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


@cache
def _nullable() -> tuple[str, ...]:
    """Paths of all fields of a run's spec that take null."""
    return tuple(_nullable_fields(RunSpec, ""))


def _nullable_fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in fields_of(model).items():
        kind = type_of(field)
        if kind.nullable:
            yield prefix + name
        if kind.model is not None:
            yield from _nullable_fields(kind.model, f"{prefix}{name}.")


def _at(spec: Mapping[str, Any], path: str) -> Any:
    """The value of a field; `_ABSENT` where there is none, `_NOWHERE` where not even the object is that would hold it."""
    *parts, name = path.split(".")
    found: Any = spec
    for part in parts:
        found = found.get(part) if isinstance(found, dict) else None
    return found.get(name, _ABSENT) if isinstance(found, dict) else _NOWHERE


def _with(spec: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value of a field; `_ABSENT`: without it."""
    first, _, rest = path.partition(".")
    changed = _with(spec[first], rest, value) if rest else value
    return {key: one for key, one in (spec | {first: changed}).items() if one is not _ABSENT}
