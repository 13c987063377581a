"""Telling Kueue what became of a Workload of ours: a change of its status, made only while it is as it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rl_operator.kube.client import Api
from rl_operator.model.decision import WorkloadChange
from rl_operator.model.names import Manifest
from rl_operator.model.times import parse_time

_REQUEUED: Final = frozenset({"Preempted", "NodeFailures"})
"""Reasons of evictions after which a Workload stands in its queue again at once; after others Kueue says when (kueue:
pkg/controller/jobframework/reconciler.go)."""


async def tell_queue(api: Api, namespace: str, change: WorkloadChange) -> Manifest:
    """Change the status of this very Workload; returns it as it is now.

    Raises:
        ApiError: it was refused, it is gone, or (`conflict`) it is another one or has just been changed.
    """
    document = await api.get("Workload", namespace, change.name)
    patch = status_patch(document, change, datetime.now(UTC))
    if not patch:
        return document
    return await api.patch("Workload", namespace, change.name, patch, "status")


def status_patch(document: Mapping[str, Any], change: WorkloadChange, now: datetime) -> list[Manifest]:
    """JSON patch of a Workload's status; empty: it says so already, so that nothing is given back twice.

    Quota is given back as Kueue itself does it when a job has stopped: no admission, no reservation, in the queue again.
    Server-side apply would not do: the admission belongs to Kueue's applies.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    conditions: list[Manifest] = list(status.get("conditions") or ())
    told = {one.get("type"): one.get("status") for one in conditions}
    wanted: list[tuple[str, bool, str]]
    if change.to == "Released":
        if told.get("Evicted") != "True" or told.get("QuotaReserved") != "True":
            return []
        since = next(one.get("lastTransitionTime") for one in conditions if one.get("type") == "Evicted")
        if change.evicted is not None and parse_time(since) != change.evicted:
            return []
        wanted = [
            ("QuotaReserved", False, "Pending"),
            ("Admitted", False, "NoReservation"),
            ("Requeued", change.reason in _REQUEUED, change.reason),
        ]
        if "PodsReady" in told:
            wanted.append(("PodsReady", False, "WaitForStart"))
    elif change.to == "PodsLost":
        if told.get("PodsReady") != "True" or told.get("Admitted") != "True" or told.get("Evicted") == "True":
            return []
        wanted = [("PodsReady", False, change.reason)]
    else:
        if told.get(change.to) == "True":
            return []
        wanted = [(change.to, True, change.reason)]
    for kind, holds, reason in wanted:
        fresh = {
            "type": kind,
            "status": str(holds),
            "reason": reason,
            "message": change.message[:1024],
            "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "observedGeneration": metadata.get("generation", 0),
        }
        old = next((one for one in conditions if one.get("type") == kind), None)
        if old is not None and old.get("status") == fresh["status"]:
            fresh["lastTransitionTime"] = old.get("lastTransitionTime", fresh["lastTransitionTime"])
        conditions = [*(one for one in conditions if one.get("type") != kind), fresh]
    patch: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]
    if not status:
        patch.append({"op": "add", "path": "/status", "value": {}})
    patch.append({"op": "add", "path": "/status/conditions", "value": conditions})
    if change.to == "Released" and "admission" in status:
        patch.append({"op": "remove", "path": "/status/admission"})
    return patch
