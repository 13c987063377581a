"""An attempt that an earlier operator began: its token is read if it may be, and otherwise the status says so."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from operator_worlds import KEY, NOW, SETTINGS, all_pods, condition, make_plan, make_run, stored

from rl_operator.decide.reconcile import reconcile
from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.decision import Decision
from rl_operator.model.tokens import derive_token
from rl_operator.render.rayjob import ray_job
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.memory import Memory

UID = "12345678-90ab"
FORBIDDEN = ApiError(403, "Forbidden", 'secrets "sums-status" is forbidden')


def secret(token: str, uid: str = UID) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": [{"uid": uid}]}, "data": {"token": token}}


class Server:
    """Has one Secret, or none, or refuses to show it; keeps how often it was asked."""

    def __init__(self, answer: dict[str, Any] | ApiError | None) -> None:
        self.answer, self.asked = answer, 0

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace, name) == ("Secret", "team-a", "sums-status")
        self.asked += 1
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer

    async def list(self, kind: str, namespace: str, **_: str) -> list[dict[str, Any]]:
        return []

    async def pages(self, kind: str, namespace: str, **_: str) -> AsyncIterator[tuple[list[Any], str]]:
        yield [], "1"


class Upgraded:
    """A run that trains when this operator comes; its head has the token from a Secret of that name."""

    def __init__(self, server: Server, name: str = "sums-status", **spec: Any) -> None:
        self.memory = Memory(UID)
        self.cluster = Cluster(cast(Api, server), Store(), SETTINGS)
        self.cluster.key = b"key"
        began = {"attempts": [{"number": 1, "rayJob": "sums-1"}], "phase": "Training"}
        ready = {"type": "Training", "status": "True", "reason": "Running", "message": ""}
        self.run = make_run(spec, resourceVersion="1") | {"status": began | {"conditions": [ready]}}
        job = ray_job(make_plan(), 1)
        (container,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
        key = {"secretKeyRef": {"name": name, "key": "token"}}
        container["env"].append({"name": "RLTRAIN_STATUS_TOKEN", "valueFrom": key})
        job["metadata"] |= {"uid": "ray-1", "resourceVersion": "2"}
        job["status"] = {
            "jobDeploymentStatus": "Running",
            "jobStatus": "RUNNING",
            "rayClusterName": "sums-1-abcde",
        }
        self.cluster.store.put(job)
        owner = {"kind": "RayJob", "uid": "ray-1", "controller": True}
        of = {"uid": "cluster-1", "metadata": {"ownerReferences": [owner]}}
        self.cluster.store.put(stored("RayCluster", "sums-1-abcde", 3, **of))

    def look(self) -> Decision:
        world = asyncio.run(self.cluster.observe(KEY, self.run, self.memory))
        world = type(world)(**{**vars(world), "pods": all_pods()})
        return reconcile(world, NOW, self.cluster.plan(self.run, self.memory))


def test_where_it_may_be_read_all_is_as_before() -> None:
    server = Server(secret(base64.b64encode(b"random").decode()))
    run = Upgraded(server)
    assert run.look().pull is not None
    assert run.memory.token == "random"
    run.look()
    assert server.asked == 1


def test_one_of_this_version_reads_nothing() -> None:
    server = Server(FORBIDDEN)
    run = Upgraded(server, "sums-1-12345678")
    assert run.look().pull is not None
    assert (run.memory.token, server.asked) == (derive_token(b"key", UID, 1, "status"), 0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FORBIDDEN, "may not be read (rbac.legacySecrets of the chart)"),
        (None, "is not in its Secret sums-status any more"),
        (secret(""), "is not in its Secret sums-status any more"),
        (secret("no base64"), "is not in its Secret sums-status any more"),
        (
            secret(base64.b64encode(b"random").decode(), "another"),
            "is not in its Secret sums-status any more",
        ),
    ],
)
def test_where_it_cannot_the_status_says_so_and_the_run_goes_on(
    answer: Mapping[str, Any] | ApiError | None, why: str
) -> None:
    run = Upgraded(Server(cast(Any, answer)))
    decision = run.look()
    assert run.memory.token is None
    assert (decision.pull, decision.status.phase) == (None, "Training")
    found = condition(decision, "Training")
    assert found is not None
    assert found[:2] == ("Unknown", "DriverNotAsked")
    assert found[2] == (
        f"the driver is not asked, as an earlier version of the operator began this attempt, and its token {why}; "
        "training goes on, and the next attempt is as ever"
    )
    assert decision.status.attempts[0].end_time is None


def test_it_is_suspended_without_a_wait_for_a_checkpoint_that_nobody_can_ask_for() -> None:
    decision = Upgraded(Server(FORBIDDEN), suspend=True).look()
    found = condition(decision, "Suspended")
    assert found is not None
    assert "no checkpoint can be asked for: the driver is not asked" in found[2]
    assert [target.name for target in decision.delete] == ["sums-1"]


def test_another_error_is_none_of_its_business() -> None:
    with pytest.raises(ApiError, match="ill"):
        Upgraded(Server(ApiError(500, "InternalError", "ill"))).look()
