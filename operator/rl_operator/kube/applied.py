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
    rules about what may not change see none of this: what was null when the run began stays so, and nothing else becomes so.

    Args:
        spec: as the API server holds it; only an object has nulls.
        annotations: of the run.
        begun: fields that were null when the run began; None: it has not.
    """
    if not isinstance(spec, dict):
        return Nulls(spec, [], [])
    told = _told(annotations.get(LAST_APPLIED, ""))
    asked = [path for path in _nullable() if _null(spec, path) or (_null(told, path) and _absent(spec, path))]
    if begun is None:
        return Nulls(_with(spec, asked, []), asked, [])
    late = [path for path in asked if path not in begun and not _may_change(path)]
    kept = [path for path in begun if _null(spec, path) or _absent(spec, path)]
    paths = list(dict.fromkeys([*kept, *(path for path in asked if path not in late)]))
    return Nulls(_with(spec, paths, late), paths, late)


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


def _may_change(path: str) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in MUTABLE)


def _parent(spec: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The object that holds the field, or would; None: there is none."""
    found: Any = spec
    for part in path.split(".")[:-1]:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _null(spec: Mapping[str, Any], path: str) -> bool:
    parent, name = _parent(spec, path), path.rpartition(".")[2]
    return parent is not None and name in parent and parent[name] is None


def _absent(spec: Mapping[str, Any], path: str) -> bool:
    parent = _parent(spec, path)
    return parent is not None and path.rpartition(".")[2] not in parent


def _with(spec: dict[str, Any], nulls: Collection[str], absent: Collection[str]) -> dict[str, Any]:
    """A copy in which some fields are null, and others are not there."""
    for path in (*nulls, *absent):
        first, _, rest = path.partition(".")
        spec = dict(spec)
        if rest:
            spec[first] = _with(spec[first], *(([rest], []) if path in nulls else ([], [rest])))
        elif path in nulls:
            spec[first] = None
        else:
            spec.pop(first, None)
    return spec
