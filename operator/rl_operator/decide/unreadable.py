"""Runs that cannot be read, of a newer version or damaged: nothing is done with them, and that is said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from rl_api.describe import found
from rl_api.paths import render_path
from rl_api.progress import Condition, RunStatus
from rl_operator.decide.diagnose import one_line
from rl_operator.model.decision import Decision
from rl_operator.model.names import Manifest
from rl_operator.model.settings import FINALIZER
from rl_operator.model.times import parse_time

_LOOK_AGAIN: Final = 300.0
_KIND: Final = "Accepted"


def wrong_status(run: Mapping[str, Any]) -> str | None:
    """What this version does not understand of a run's status, as a sentence; None: it understands all."""
    try:
        RunStatus.model_validate(run.get("status") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = render_path(("status", *first["loc"]))
        return one_line(
            f"the status cannot be read: {where}: found {found(first['input'])} ({first['msg']})", 300
        )
    return None


def hands_off(run: Mapping[str, Any], now: datetime, reason: str, why: str) -> Decision:
    """Nothing, and the condition that says so, with `reason` in one word and what is wrong as a sentence."""
    message = f"{why}; nothing is done with this run: a newer version of the operator may have written it"
    if (run.get("metadata") or {}).get("deletionTimestamp"):
        message += f". It goes when nobody's work is in it any more: take away its finalizer {FINALIZER}"
    before = next((one for one in _conditions(run) if one.get("type") == _KIND), {})
    kept = parse_time(before.get("lastTransitionTime")) if before.get("status") == "Unknown" else None
    condition = Condition(
        type=_KIND, status="Unknown", reason=reason, message=message, last_transition_time=kept or now
    )
    return Decision(RunStatus(conditions=[condition]), requeue=_LOOK_AGAIN, unreadable=why)


def condition_patch(run: Mapping[str, Any], condition: Condition) -> list[Manifest]:
    """JSON patch that writes one condition and leaves the rest of a status as it is; empty: it says so already.

    It fails where the run is another one by now, or its conditions have changed.
    """
    there, wanted = _conditions(run), condition.model_dump(mode="json", by_alias=True, exclude_none=True)
    patch: list[Manifest] = [{"op": "test", "path": "/metadata/uid", "value": run["metadata"].get("uid")}]
    for index, one in enumerate(there):
        if one.get("type") == condition.type:
            place = f"/status/conditions/{index}"
            patch.append({"op": "test", "path": f"{place}/type", "value": condition.type})
            patch.append({"op": "replace", "path": place, "value": wanted})
            return patch if {**one, **wanted} != one else []
    status = run.get("status")
    if not isinstance(status, Mapping):
        value: Any = {"conditions": [wanted]}
        return [*patch, {"op": "add", "path": "/status", "value": value}]
    if not isinstance(status.get("conditions"), list):
        return [*patch, {"op": "add", "path": "/status/conditions", "value": [wanted]}]
    return [*patch, {"op": "add", "path": "/status/conditions/-", "value": wanted}]


def _conditions(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = run.get("status")
    found = status.get("conditions") if isinstance(status, Mapping) else None
    return [one if isinstance(one, Mapping) else {} for one in found] if isinstance(found, list) else []
