"""Bringing objects to what was rendered: server-side apply from birth, under one name.

A field that a render no longer names is dropped by the API server only if it belongs to our applies. Objects of operators
before this one were POSTed: their fields belong to our name as an `Update`, and would stay for ever. Their ownership is
brought over when they are first applied, as client-go's `csaupgrade` does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_operator.kube.client import Api
from rl_operator.model.names import Manifest
from rl_operator.model.settings import FIELD_MANAGER


async def bring(api: Api, manifest: Manifest, uid: str) -> Manifest:
    """Bring this very object to what `manifest` says; returns it as it is now.

    Raises:
        ApiError: it was refused, or (`conflict`) the object is gone, another one, or has just been changed.
    """
    manifest = manifest | {"metadata": manifest["metadata"] | {"uid": uid}}
    made = await api.apply(manifest)
    operations = taken_over(made)
    if not operations:
        return made
    metadata = manifest["metadata"]
    await api.patch(manifest["kind"], metadata["namespace"], metadata["name"], operations)
    return await api.apply(manifest)


async def change(api: Api, kind: str, namespace: str, name: str, operations: list[Manifest]) -> Manifest:
    """Change parts of an object that was applied, by a JSON patch; they stay part of what we apply. Returns it as it is now.

    Raises:
        ApiError: it was refused, or (`conflict`) the object is not what it was taken for.
    """
    made = await api.patch(kind, namespace, name, operations)
    owned = taken_over(made)
    return await api.patch(kind, namespace, name, owned) if owned else made


def taken_over(document: Manifest) -> list[Manifest]:
    """JSON patch that makes what we own by `Update` part of what we own by `Apply`; empty: there is no such thing."""
    metadata = document["metadata"]
    entries: list[Manifest] = metadata.get("managedFields") or []
    ours = [
        entry for entry in entries if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
    ]
    if all(entry.get("operation") == "Apply" for entry in ours):
        return []
    fields: dict[str, Any] = {}
    for entry in ours:
        fields = _union(fields, entry.get("fieldsV1") or {})
    newest = next((entry for entry in ours if entry.get("operation") == "Apply"), ours[-1])
    kept = [entry for entry in entries if entry not in ours]
    return [
        {
            "op": "replace",
            "path": "/metadata/managedFields",
            "value": [*kept, newest | {"operation": "Apply", "fieldsV1": fields}],
        },
        # Refused with a conflict when the object has changed since.
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both sets of fields. A field that is owned itself is an empty mapping, or has a "." where parts of it are too."""
    result = dict(one)
    for name, parts in other.items():
        known = result.get(name)
        if known is None or known == parts:
            result[name] = parts
        else:
            whole: dict[str, Any] = {} if known and parts else {".": {}}
            result[name] = _union(known, parts) | whole
    return result
