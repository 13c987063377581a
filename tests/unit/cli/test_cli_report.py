"""Where the report of a run without pods is to be found."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cli.report import where_it_is

CLAIM = {"persistentVolumeClaim": "checkpoints"}
OBJECTS = {"s3": "s3://bucket/runs"}
PLACE = "s3://bucket/runs/arithmetic-12345678"


@pytest.mark.parametrize(
    ("storage", "status", "sentence"),
    [
        (CLAIM, {}, "run arithmetic (Pending) has no head pod yet, and so no report"),
        (
            CLAIM,
            {
                "phase": "Failed",
                "attempts": [{}],
                "checkpoint": {"uri": "/var/lib/rltrain/run/checkpoints/step-4"},
            },
            "run arithmetic (Failed) has no head pod: its report is on PersistentVolumeClaim checkpoints in namespace "
            "team-a, as arithmetic-12345678/run/report.html; docs/cluster.md shows how to copy it from there",
        ),
        (
            OBJECTS,
            {"phase": "Succeeded", "attempts": [{}], "checkpoint": {"uri": f"{PLACE}/step-00000040"}},
            f"run arithmetic (Succeeded) has no head pod: its report is {PLACE}/report.html, if it has ended; "
            "docs/cluster.md shows how to get it",
        ),
        (
            None,
            {"phase": "Succeeded", "attempts": [{}]},
            "run arithmetic (Succeeded) has no head pod, and its report went with it: only a run with "
            "checkpoint.storage.persistentVolumeClaim or checkpoint.storage.s3 keeps one",
        ),
    ],
)
def test_where_the_report_is(storage: dict[str, str] | None, status: dict[str, Any], sentence: str) -> None:
    metadata = {"name": "arithmetic", "namespace": "team-a", "uid": "12345678-90ab"}
    run = {"metadata": metadata, "spec": {"checkpoint": {"storage": storage}}, "status": status}
    assert where_it_is(run) == sentence
