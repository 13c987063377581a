"""Objects as the API server has them, for tests of what is read of them."""

from __future__ import annotations

from typing import Any

TIME = "2026-03-01T12:00:00Z"
METADATA: dict[str, Any] = {
    "name": "sums-2",
    "uid": "u",
    "creationTimestamp": TIME,
    "labels": {"rltrain.dev/attempt": "2", "rltrain.dev/role": "head"},
}


def document(kind: str, **parts: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": METADATA, **parts}
