"""Who wrote a field of an object, as the API server keeps it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rl_operator.model.times import parse_time


def writers(metadata: Mapping[str, Any], annotation: str) -> dict[str, datetime | None]:
    """Field managers that own an annotation, each with the time of its last write to the object.

    Who takes an annotation away leaves no trace.
    """
    found: dict[str, datetime | None] = {}
    for entry in metadata.get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        if f"f:{annotation}" in ((fields.get("f:metadata") or {}).get("f:annotations") or {}):
            found[str(entry.get("manager") or "")] = parse_time(entry.get("time"))
    return found
