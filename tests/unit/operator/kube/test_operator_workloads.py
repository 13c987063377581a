"""What Kueue is told of a Workload: quota that is given back once, pods that are ready, an end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rl_operator.kube.workloads import status_patch
from rl_operator.model.decision import WorkloadChange

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)
EVICTED = datetime(2026, 3, 1, 12, tzinfo=UTC)


def workload(*conditions: tuple[str, str], **status: Any) -> dict[str, Any]:
    facts = [
        {"type": kind, "status": value, "lastTransitionTime": "2026-03-01T12:00:00Z"}
        for kind, value in conditions
    ]
    metadata = {"uid": "1", "resourceVersion": "7", "generation": 3}
    return {"metadata": metadata, "status": {"conditions": facts, **status}}


TAKEN = (("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "True"), ("PodsReady", "True"))


def released(reason: str = "Preempted", evicted: datetime | None = EVICTED) -> WorkloadChange:
    return WorkloadChange("sums", "1", "Released", reason, "for another", evicted)


def after(patch: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    conditions = next(one["value"] for one in patch if one["path"] == "/status/conditions")
    return {one["type"]: (one["status"], one.get("reason", "")) for one in conditions}


@pytest.mark.parametrize(
    ("reason", "again"), [("Preempted", "True"), ("NodeFailures", "True"), ("Deactivated", "False")]
)
def test_quota_is_given_back_as_kueue_does_it(reason: str, again: str) -> None:
    patch = status_patch(workload(*TAKEN, admission={"clusterQueue": "all"}), released(reason), NOW)
    assert after(patch) == {
        "Evicted": ("True", ""),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Requeued": (again, reason),
        "PodsReady": ("False", "WaitForStart"),
    }
    assert {"op": "remove", "path": "/status/admission"} in patch
    assert {"op": "test", "path": "/metadata/resourceVersion", "value": "7"} in patch
    assert {"op": "test", "path": "/metadata/uid", "value": "1"} in patch


@pytest.mark.parametrize(
    "there",
    [
        workload(("QuotaReserved", "False"), ("Evicted", "True")),
        workload(("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "False")),
        workload(),
    ],
)
def test_nothing_is_given_back_twice(there: dict[str, Any]) -> None:
    assert status_patch(there, released(), NOW) == []


def test_a_release_answers_its_own_eviction_and_no_later_one() -> None:
    assert status_patch(workload(*TAKEN), released(evicted=datetime(2026, 3, 1, 11, tzinfo=UTC)), NOW) == []
    assert status_patch(workload(*TAKEN), released(), NOW) != []


@pytest.mark.parametrize("kind", ["PodsReady", "Finished"])
def test_what_is_told_is_told_once(kind: Any) -> None:
    change = WorkloadChange("sums", "1", kind, "Started", "x" * 5000)
    patch = status_patch(workload(("QuotaReserved", "True")), change, NOW)
    assert after(patch)[kind] == ("True", "Started")
    told = patch[-1]["value"][-1]
    assert (len(told["message"]), told["lastTransitionTime"]) == (1024, "2026-03-01T13:00:00Z")
    assert status_patch(workload((kind, "True")), change, NOW) == []


def test_a_workload_without_a_status_gets_one() -> None:
    bare = {"metadata": {"uid": "1", "resourceVersion": "7"}}
    patch = status_patch(bare, WorkloadChange("sums", "1", "Finished", "Failed", "why"), NOW)
    assert {"op": "add", "path": "/status", "value": {}} in patch


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ((("Admitted", "True"), ("PodsReady", "True")), True),
        ((("Admitted", "True"), ("PodsReady", "False")), False),
        ((("Admitted", "True"),), False),
        ((("Admitted", "True"), ("PodsReady", "True"), ("Evicted", "True")), False),
        ((("Admitted", "False"), ("PodsReady", "True")), False),
    ],
)
def test_pods_that_were_lost_are_awaited_anew(conditions: tuple[tuple[str, str], ...], told: bool) -> None:
    change = WorkloadChange("sums", "1", "PodsLost", "WaitForRecovery", "they were lost")
    patch = status_patch(workload(*conditions), change, NOW)
    assert bool(patch) == told
    if told:
        assert after(patch)["PodsReady"] == ("False", "WaitForRecovery")
        changed = next(one["value"] for one in patch if one["path"] == "/status/conditions")
        assert changed[-1]["lastTransitionTime"] == "2026-03-01T13:00:00Z", "Kueue counts from then"
