"""Whose fields are: what was POSTed once becomes what is applied."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rl_operator.kube.apply import change, taken_over


def entry(operation: str, fields: dict[str, Any], manager: str = "rltrain-operator", **more: Any) -> Any:
    return {"manager": manager, "operation": operation, "apiVersion": "policy/v1", "fieldsV1": fields} | more


def document(*entries: Any) -> dict[str, Any]:
    return {"metadata": {"name": "sums", "resourceVersion": "12", "managedFields": list(entries)}}


OTHERS = entry("Update", {"f:spec": {"f:x": {}}}, manager="kubectl")
STATUS = entry("Update", {"f:status": {}}, subresource="status")


def test_what_is_applied_is_left_alone() -> None:
    assert taken_over(document()) == []
    assert taken_over(document(entry("Apply", {"f:spec": {}}), OTHERS, STATUS)) == []


def test_what_was_posted_becomes_applied() -> None:
    posted = entry("Update", {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}, time="2026-01-01T00:00:00Z")
    fields, version = taken_over(document(OTHERS, posted, STATUS))
    assert fields == {
        "op": "replace",
        "path": "/metadata/managedFields",
        "value": [OTHERS, STATUS, posted | {"operation": "Apply"}],
    }
    assert version == {"op": "replace", "path": "/metadata/resourceVersion", "value": "12"}


def test_both_are_joined() -> None:
    applied = entry("Apply", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}, "f:e": {"f:g": {}}}})
    posted = entry("Update", {"f:spec": {"f:b": {"f:d": {}}, "f:e": {}}, "f:data": {}})
    (fields, _) = taken_over(document(applied, posted))
    union = {
        "f:spec": {"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}, "f:e": {".": {}, "f:g": {}}},
        "f:data": {},
    }
    assert fields["value"] == [applied | {"fieldsV1": union}]


@pytest.mark.parametrize("owned", [True, False])
def test_what_a_patch_changes_stays_applied(owned: bool) -> None:
    applied = entry("Apply", {"f:spec": {"f:a": {}}})
    after = document(applied, entry("Update", {"f:spec": {"f:b": {}}})) if owned else document(applied)
    patches: list[Any] = []

    class Patched:
        async def patch(self, *where: Any) -> Any:
            patches.append(where)
            return after

    operations = [{"op": "replace", "path": "/spec/b", "value": 1}]
    assert asyncio.run(change(Patched(), "RayService", "team-a", "chat", operations)) == after  # type: ignore[arg-type]
    place = ("RayService", "team-a", "chat")
    assert patches == [(*place, operations), *([(*place, taken_over(after))] if owned else [])]
