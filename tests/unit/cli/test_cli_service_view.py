"""From a service object to what is shown."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_cli.failures import NOT_INSTALLED, ClusterError
from rl_cli.screen import Screen
from rl_cli.service_view import service_row
from rl_cli.view import changed, line
from rl_cli.watch import follow_all, meant
from rl_operator.model.names import KIND, SERVICE_KIND

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def service(**status: Any) -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "team-a", "uid": "u"}
    return {"metadata": metadata, "status": status}


def condition(kind: str, status: str, reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": f"{kind} says"}


def test_everything_that_is_known() -> None:
    shown = service_row(
        service(
            phase="Updating",
            conditions=[condition("Serving", "True")],
            serving={"version": "a", "step": 20},
            candidate={"version": "b", "step": 30, "state": "RollingOut", "message": "it passed"},
            traffic=[{"version": "a", "percent": 50}, {"version": "b", "percent": 50}],
            replicas={"ready": 1, "desired": 2},
            promotions=[{"version": "a", "step": 20, "result": "rolledBack", "message": "slow"}],
        ),
        NOW,
    )
    assert line(shown, with_namespace=True) == (
        "team-a/service/chat  Updating  version a  step 20  candidate b RollingOut: it passed  traffic a 50%, b 50%  "
        "replicas 1/2  last a rolled back: slow"
    )
    assert not shown.over
    assert changed(None, shown)
    assert not changed(shown, shown)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([condition("Accepted", "False"), condition("Serving", "True")], "Accepted says"),
        ([condition("SourceFound", "False"), condition("ClusterReady", "False")], "SourceFound says"),
        (
            [condition("SourceFound", "False", "RunDeleted"), condition("ClusterReady", "False")],
            "ClusterReady says",
        ),
        ([condition("Promoting", "False", "Refused"), condition("Serving", "False")], "Promoting says"),
        ([condition("Serving", "Unknown")], "Serving says"),
        ([condition("Promoting", "False", "Refused"), condition("Serving", "True")], ""),
    ],
)
def test_the_reason(conditions: list[dict[str, str]], reason: str) -> None:
    assert service_row(service(conditions=conditions), NOW).reason == reason


def test_a_status_cannot_steer_the_terminal() -> None:
    shown = service_row(service(phase="\x1b[2J", serving={"version": "\x1b[31m"}, traffic="x"), NOW)
    assert "\x1b" not in line(shown)


def test_names() -> None:
    assert meant("chat") == (KIND, "chat")
    assert meant("service/chat") == meant("rlps/chat") == (SERVICE_KIND, "chat")
    with pytest.raises(InvalidConfig, match="allowed: the name of a run, or service/NAME"):
        meant("pod/chat")


class OlderCluster:
    """Knows no services; its watch of runs breaks for good after one change."""

    def listed(self, kind: str, namespace: str | None, name: str | None = None) -> Any:
        if kind == SERVICE_KIND:
            raise ClusterError("unknown", NOT_INSTALLED)
        return [{"metadata": {"name": "sums", "namespace": "team-a"}}], "1"

    def changes(self, *_: object) -> Any:
        raise ClusterError("the end", 400)


def test_a_cluster_without_services_shows_its_runs() -> None:
    stream = io.StringIO()
    with Screen(None, "team-a", stream) as screen, pytest.raises(ClusterError, match="the end"):
        follow_all(OlderCluster(), "team-a", screen)
    assert stream.getvalue().startswith("sums  Pending  - no operator")
