"""What a person applied with kubectl, where it says more than what the API server holds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from rl_api.describe import fields_of, type_of
from rl_api.run import RunSpec

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def with_nulls(spec: object, annotations: Mapping[str, str]) -> object:
    """The spec of a run with the nulls that were applied, such as `checkpoint: null`, which means no checkpoints.

    The API server keeps a null, but kubectl's client-side apply takes it for a field to be removed when it applies the
    same file again. What the file said is in its annotation. Nulls of fields that take none mean nothing.
    """
    text = annotations.get(LAST_APPLIED, "")
    if "null" not in text or not isinstance(spec, dict):
        return spec
    try:
        told = json.loads(text)["spec"]
    except (ValueError, TypeError, KeyError):
        return spec
    return _restored(spec, told, RunSpec) if isinstance(told, dict) else spec


def _restored(there: dict[str, Any], told: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    result = dict(there)
    for name, field in fields_of(model).items():
        kind, value = type_of(field), told.get(name)
        if value is None and name in told and name not in there and kind.nullable:
            result[name] = None
        elif kind.model is not None and isinstance(value, dict) and isinstance(there.get(name), dict):
            result[name] = _restored(there[name], value, kind.model)
    return result
