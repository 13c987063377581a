"""What is seen of Kueue's Workloads: their state, their place in a queue, and where it has put pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_operator.model.workload import Fact, Flavor, Line, Workload, line_of, parse_workload, placed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def document(conditions: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    facts = [
        {
            "type": kind,
            "status": status,
            "reason": f"{kind}Reason",
            "message": "why",
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        }
        for kind, status in (conditions or {}).items()
    ]
    found: dict[str, Any] = {
        "metadata": {"name": "sums", "uid": "1", **parts.pop("metadata", {})},
        "spec": {
            "queueName": "team-a",
            "priority": 10,
            "podSets": [{"name": "head", "count": 1}],
            **parts.pop("spec", {}),
        },
        "status": {"conditions": facts, **parts},
    }
    return found


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, "pending"),
        ({"QuotaReserved": "False"}, "pending"),
        ({"QuotaReserved": "True"}, ""),
        ({"QuotaReserved": "True", "Admitted": "True"}, "runs"),
        ({"QuotaReserved": "True", "Admitted": "True", "Evicted": "True"}, "taken"),
        # Given back, it waits again; Kueue says that it was evicted until it is admitted.
        ({"QuotaReserved": "False", "Admitted": "False", "Evicted": "True"}, "pending"),
        ({"QuotaReserved": "True", "Admitted": "True", "Evicted": "False"}, "runs"),
        ({"QuotaReserved": "True", "Admitted": "True", "Finished": "True"}, ""),
    ],
)
def test_states(conditions: dict[str, str], expected: str) -> None:
    found = parse_workload(document(conditions))
    assert [name for name in ("pending", "runs", "taken") if getattr(found, name)] == [expected] * bool(
        expected
    )


def test_one_that_is_not_active_does_not_wait() -> None:
    assert not parse_workload(document(spec={"active": False})).pending


@pytest.mark.parametrize(
    ("text", "boost"),
    [("12", 12), ("-3", -3), ("", None), ("1_000", None), ("9" * 30, None), (str(2**31), None), ("x", None)],
)
def test_a_boost_is_a_number_that_kueue_takes(text: str, boost: int | None) -> None:
    metadata = {"annotations": {"kueue.x-k8s.io/priority-boost": text}}
    assert parse_workload(document(metadata=metadata)).boost == boost


def test_anything_may_be_in_a_workload() -> None:
    odd = document(
        spec={"podSets": [None, {"count": "x"}], "priority": True}, admissionChecks=[None, {"name": "c"}]
    )
    found = parse_workload(odd)
    assert (found.count, found.priority, found.checks) == (0, 0, "c: None")


def test_the_line_is_by_priority_with_its_boost_and_then_by_age() -> None:
    waiting = [
        Workload("young", created=NOW + timedelta(hours=1)),
        Workload("old", created=NOW),
        Workload("important", priority=5, created=NOW + timedelta(hours=2)),
        Workload("boosted", boost=7, created=NOW + timedelta(hours=3)),
    ]
    assert [line_of(name, waiting) for name in ("boosted", "important", "old", "young")] == [
        Line(position, 4) for position in (1, 2, 3, 4)
    ]
    assert line_of("admitted", waiting) is None


def test_what_kueue_says_of_one_holds_for_those_that_ask_for_the_same() -> None:
    told = Workload("told", pods="same", waits=Fact("Pending", "no rack has room"))
    waiting = [
        told,
        Workload("alike", pods="same"),
        Workload("other", pods="others"),
        Workload("urgent", pods="same", priority=1),
        Workload("unknown"),
        replace(told, name="foreign", pods=""),
    ]
    evicted = Fact("Preempted", "for a workload (UID: 1)")
    waiting.insert(0, replace(told, name="evicted", evicted=evicted, waits=evicted))
    said = {one.name: line_of(one.name, waiting) for one in waiting}
    assert {name: line.said for name, line in said.items() if line is not None} == {
        "evicted": "no rack has room",
        "told": "no rack has room",
        "alike": "no rack has room",
        "other": "",
        "urgent": "",
        "unknown": "",
        "foreign": "",
    }


def test_pods_get_what_flavors_and_checks_say() -> None:
    found = parse_workload(
        document(
            {"QuotaReserved": "True", "Admitted": "True"},
            admission={
                "podSetAssignments": [
                    {"name": "head", "count": 1, "flavors": {"cpu": "spot", "memory": "spot"}}
                ]
            },
            admissionChecks=[
                {
                    "state": "Ready",
                    "podSetUpdates": [
                        {"name": "head", "nodeSelector": {"made": "for"}, "labels": {"a": "b"}}
                    ],
                }
            ],
        )
    )
    flavors = {"spot": Flavor("spot", {"kind": "spot"}, ({"key": "spot", "operator": "Exists"},))}
    where = placed(found.assigned["head"], flavors, "sums")
    assert found.flavors == ["spot"]
    assert (where.node_selector, where.labels) == ({"kind": "spot", "made": "for"}, {"a": "b"})
    assert (where.tolerations, where.workload) == (({"key": "spot", "operator": "Exists"},), "")
