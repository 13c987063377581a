"""Events about runs and services, as `kubectl describe` shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rl_api.base import API_VERSION
from rl_operator.model.decision import Note
from rl_operator.model.names import KIND, Manifest
from rl_operator.model.settings import FIELD_MANAGER

_LONGEST = 1024


def event_of(
    metadata: Mapping[str, Any], note: Note, attempt: int, now: datetime, kind: str = KIND
) -> Manifest:
    """The event that says `note` of a run, or of another `kind` of ours. Its name says what it is about: said twice, it is
    there once."""
    what = f"{metadata['uid']} {int(metadata.get('generation') or 0)} {attempt} {note.reason} {note.message}"
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            **{key: metadata[key] for key in ("name", "namespace", "uid")},
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.message[:_LONGEST],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
