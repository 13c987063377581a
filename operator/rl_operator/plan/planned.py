"""The placement that a run was given in place of its spec's. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from rl_api.placement_status import KeptPlacement, PlannedPlacement
from rl_api.progress import Attempt
from rl_api.roles import PlacementSpec

_FIELDS: Final = ("shared_samplers", "part_groups", "hand_over", "hand_over_at")
"""What is planned of `placement`. What becomes of tensors is not: each attempt decides auto by the devices that it finds."""


def placement_digest(placement: PlacementSpec) -> str:
    """Hash of who shares devices by a spec, and how: not of what has nothing to do with it."""
    document = placement.model_dump(mode="json", include={"mode", *_FIELDS, "residency"})
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def planned_of(run: Mapping[str, Any]) -> KeptPlacement | None:
    """The placement that was given to the attempt that goes on, or begins next; None: it has its spec's. Any JSON."""
    status = run.get("status")
    placement = status.get("placement") if isinstance(status, Mapping) else None
    if not isinstance(status, Mapping) or not isinstance(placement, Mapping):
        return None
    try:
        newest = [Attempt.model_validate(one) for one in (status.get("attempts") or [])[-1:]]
        for name in ("next", "planned"):
            kept = KeptPlacement.model_validate(placement[name]) if placement.get(name) else None
            if kept is not None and not _to_end_for(newest, kept):
                return kept
    except (ValidationError, TypeError):
        pass  # then the status cannot be read, and nothing is done with the run
    return None


def _to_end_for(newest: Sequence[Attempt], kept: KeptPlacement) -> bool:
    """Whether the newest attempt goes on without a placement that those after it have."""
    return bool(newest) and newest[0].end_time is None and newest[0].number <= kept.attempt


def with_placement(run: Mapping[str, Any], planned: PlannedPlacement) -> dict[str, Any]:
    """The run as if its user had written a placement; mode auto stays."""
    found = planned.model_dump(mode="json", by_alias=True, include=set(_FIELDS))
    spec = run["spec"]
    return {**run, "spec": {**spec, "placement": {**(spec.get("placement") or {}), **found}}}
