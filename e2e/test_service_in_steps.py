"""A policy that gets its traffic in steps, through a Gateway: halted half way, and taken back by hand and by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import GATEWAY_IMAGE, TRAINER_IMAGE, Train
from gateway import NAMESPACE as GATEWAY_NAMESPACE
from gateway import gateways
from policy_service import Clients, PolicyService, steady_clients
from test_service import ROLLBACK_SECONDS, another_policy
from test_training import START_SECONDS
from training_run import TrainingRun

SERVE_SECONDS = 300
# Between two steps: long where somebody is to be seen with some of the traffic, on busy cores too, short where it goes on.
SLOW, QUICK = {"interval": "45s"}, {"interval": "5s"}
STEPS = {"stepPercent": 25} | SLOW


def share(service: PolicyService, version: str) -> int:
    """Percent of the requests that this version has; 0 also while a control is too busy to say whose they are."""
    return next((one["percent"] for one in service.status.get("traffic", ()) if one["version"] == version), 0)


def settled_share(service: PolicyService, version: str) -> int:
    """The same, once it is known whose the requests are."""
    found = wait_for("the traffic is known", lambda: service.status.get("traffic"), 60, service.describe)
    return next((one["percent"] for one in found if one["version"] == version), 0)


def candidate_of(service: PolicyService, step: int) -> str:
    """Version of the candidate of this step, once it is one."""

    def look() -> str | None:
        found = service.status.get("candidate") or {}
        return str(found["version"]) if found.get("step") == step else None

    return wait_for(f"step {step} is a candidate", look, 60, service.describe)


def wait_for_share(service: PolicyService, version: str, percent: int, seconds: float) -> None:
    """Returns when this version has so much of the traffic, or more."""
    wait_for(
        f"{version} has {percent}% of the requests",
        lambda: share(service, version) >= percent,
        seconds,
        service.describe,
    )


def answered_since(clients: Clients, count: int, why: Callable[[], str]) -> None:
    """Returns when so many more requests were answered."""
    goal = clients.seen["answered"] + count
    wait_for(f"{count} more requests are answered", lambda: clients.seen["answered"] >= goal, 120, why)


def a_bad_policy_goes_back_by_itself(run: TrainingRun, service: PolicyService, clients: Clients) -> None:
    """One that answers nothing has some of the traffic, and loses it: no other request fails."""
    broken = another_policy(run, "spoil", "nan")
    service.patch({"promotion": {"step": broken["step"]}})
    # With some of the traffic it is for two seconds only.
    back = service.wait_for_promotions("rolledBack", 2, SERVE_SECONDS + ROLLBACK_SECONDS)[-1]
    print(f"rolled back: {back['message']}")
    assert back["digest"] == broken["digest"]
    assert "requests failed" in back["message"]
    assert service.status["refused"] == [broken["digest"]]
    answered_since(clients, 50, service.describe)
    others = [one for one in clients.seen["failed"] if "no numbers" not in one["error"]]
    assert others == []


@pytest.mark.long
@pytest.mark.alone  # two Ray clusters, and clients, on two cores
def test_traffic_moves_in_steps_with_a_halt_and_a_way_back(
    cluster: Cluster, train: Train, serve: Callable[..., PolicyService]
) -> None:
    run = train(
        "teacher",
        {
            "stop": {"maxSteps": 15, "targetReward": None},
            "checkpoint": {"everySteps": 5, "keep": 10},
        },
    )
    with gateways(cluster, GATEWAY_IMAGE) as gateway_class:
        promotion: dict[str, Any] = {
            "mode": "manual",
            "step": 5,
            "strategy": "incremental",
            "incremental": STEPS | {"gatewayClass": gateway_class},
            "gate": {},
            "rollback": {"window": "5s", "minRequests": 5, "maxLatencyRatio": 1000},
        }
        service = serve(
            "chat",
            {
                "from": {"run": "teacher"},
                "promotion": promotion,
                "clients": {"matchLabels": {"kubernetes.io/metadata.name": GATEWAY_NAMESPACE}},
                # For so long, and a little more, the first of two clusters stays.
                "limits": {"timeout": "60s", "queue": 5000},
            },
        )
        [first] = service.wait_for_promotions("promoted", 1, START_SECONDS + SERVE_SECONDS)
        service.wait_for_reason("Serving", "Serving", 60)
        service.wait_for_reason("ClusterReady", "Ready", 60)
        run.wait_for_condition("Succeeded", 120)
        [url] = service.status["endpoints"]
        with steady_clients(service, TRAINER_IMAGE, url=url) as clients:
            service.patch({"promotion": {"step": 10}})
            second = candidate_of(service, 10)
            wait_for_share(service, second, 25, SERVE_SECONDS)
            service.patch({"promotion": {"incremental": {"halted": True} | QUICK}})
            halted = service.wait_for_reason("Promoting", "RollingOut", 60)
            wait_for(
                "it is halted",
                lambda: service.condition("Promoting")["message"].endswith("halted"),
                60,
                service.describe,
            )
            before = settled_share(service, second)
            assert 25 <= before < 100, halted
            answered_since(clients, 150, service.describe)  # for three times the interval
            assert settled_share(service, second) == before
            assert {first["version"], second} <= set(clients.seen["versions"])
            clients.assert_none_failed()

            service.patch({"promotion": {"incremental": {"halted": False}}})
            promoted = service.wait_for_promotions("promoted", 2, SERVE_SECONDS)[-1]
            assert promoted["version"] == second
            wait_for("it has all", lambda: share(service, second) == 100, 60, service.describe)
            clients.assert_none_failed()

            service.patch({"promotion": {"step": 15, "incremental": SLOW}})
            third = candidate_of(service, 15)
            wait_for_share(service, third, 25, SERVE_SECONDS)
            clients.wait_for_version(third, 60)
            service.patch({"promotion": {"step": 10}})
            [back] = service.wait_for_promotions("rolledBack", 1, SERVE_SECONDS)
            assert (back["version"], back["message"]) == (third, "step 10 is wanted instead")
            assert settled_share(service, second) == 100
            assert service.serving == second
            assert service.status.get("refused", []) == []
            answered_since(clients, 50, service.describe)
            clients.assert_all_answered(300)

            a_bad_policy_goes_back_by_itself(run, service, clients)
            assert settled_share(service, second) == 100
            assert service.serving == second
