"""What a conflict leads to, and what is remembered of events: a controller over an API server of values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from operator_worlds import make_plan, make_run

from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.settings import Settings
from rl_operator.render.rayjob import ray_job
from rl_operator.runtime import cluster as module
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.metrics import Metrics

KEY = ("team-a", "sums")


class Server:
    """Has a run, refuses with a conflict, and lists no events."""

    def __init__(self, run: dict[str, Any] | None) -> None:
        self.run = run
        self.found: list[str] = []

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.found.append(f"{kind} {name}")
        return self.run

    async def pages(self, kind: str, namespace: str, *, fields: str) -> AsyncIterator[tuple[list[Any], str]]:
        yield [], "1"


def stored(version: int, uid: str = "12345678-90ab") -> dict[str, Any]:
    return make_run(resourceVersion=str(version), uid=uid)


@pytest.mark.parametrize(
    ("now", "waits"),
    [(stored(9), False), (stored(9, "another"), True), (None, True)],
    ids=["it has changed", "it is another one", "it is gone"],
)
def test_after_a_conflict_the_run_is_looked_at_as_it_is(now: dict[str, Any] | None, waits: bool) -> None:
    async def work() -> None:
        server = Server(now)
        controller = Controller(cast(Api, server), Settings(), Metrics())
        controller.seen("RLTrainingRun", "ADDED", stored(5))

        async def reconcile(key: Any) -> None:
            controller._memory_of(key, "12345678-90ab")
            raise ApiError(409, "Conflict", "it has been modified")

        controller.reconcile = reconcile  # type: ignore[method-assign]
        assert await controller.queue.get() == KEY
        await controller.attend(KEY)
        controller.queue.done(KEY)
        assert server.found == ["RLTrainingRun sums"]
        run = controller.store.run(KEY)
        assert run is not None
        assert run["metadata"]["resourceVersion"] == ("5" if waits else "9")
        assert controller.queue.depth == (0 if waits else 1), (
            "at once, where there is something new to look at"
        )
        for _ in range(4):  # what conflicts again and again has to wait
            await controller.attend(KEY)
        if not waits:
            await controller.queue.get()
            controller.queue.done(KEY)
        await controller.attend(KEY)
        assert controller.queue.depth == 0
        controller.queue.forget(KEY)

    asyncio.run(work())


def test_events_of_namespaces_without_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
        cluster = Cluster(cast(Api, Server(None)), Store(), Settings())
        for number in range(50):
            await cluster.events(f"team-{number}", "type=Warning")
            now += 1.0
        assert len(cluster._known.answers) <= 7

    asyncio.run(work())


def test_an_object_that_nobody_thought_of_does_not_end_its_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        controller = Controller(cast(Api, Server(None)), Settings(), Metrics())
        odd: Any = {"metadata": {"name": "odd", "namespace": "team-a"}, "status": {"conditions": 5}}
        for change in ("LISTED", "DELETED"):
            controller.seen("Pod", change, odd)
        controller.seen("RLTrainingRun", "ADDED", stored(5))
        assert controller.store.runs() == [KEY]

    asyncio.run(work())
    assert [record.message for record in caplog.records] == ["a Pod is disregarded: ('team-a', 'odd')"] * 2


class Refusing(Server):
    """Takes everything but disruption budgets."""

    def __init__(self) -> None:
        super().__init__(None)
        self.written: list[tuple[str, str]] = []

    async def apply(
        self, manifest: dict[str, Any], subresource: str = "", *, new: bool = False
    ) -> dict[str, Any]:
        if manifest["kind"] == "PodDisruptionBudget":
            raise ApiError(403, "Forbidden", "exceeded quota")
        self.written.append((manifest["kind"], subresource))
        return manifest | {"metadata": manifest["metadata"] | {"resourceVersion": "99", "uid": "u"}}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.apply(manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        self.written.append((kind, "deleted"))


def test_a_run_can_be_suspended_though_an_object_of_it_is_refused() -> None:
    async def work() -> None:
        server = Refusing()
        controller = Controller(cast(Api, server), Settings(), Metrics())
        run = make_run(
            {"suspend": True, "checkpoint": {"storage": {"persistentVolumeClaim": None, "path": "kept"}}},
            resourceVersion="5",
            finalizers=["rltrain.dev/checkpoint"],
        )
        run["status"] = {"attempts": [{"number": 1, "rayJob": "sums-1"}]}
        controller.seen("RLTrainingRun", "ADDED", run)
        job = ray_job(make_plan(), 1)
        job["metadata"] |= {"uid": "r", "resourceVersion": "6"}
        controller.seen("RayJob", "ADDED", job)
        await controller.attend(KEY)
        assert server.written[-2:] == [("RayJob", "deleted"), ("RLTrainingRun", "status")]
        controller.queue.forget(KEY)

    asyncio.run(work())


def test_no_plan_is_kept_of_a_run_at_which_nobody_looks_for_long() -> None:
    async def work() -> None:
        controller = Controller(cast(Api, Refusing()), Settings(), Metrics())
        kept = {"checkpoint": {"storage": {"persistentVolumeClaim": None, "path": "kept"}}}
        for version, suspend in ((5, False), (600, True)):
            run = make_run({"suspend": suspend, **kept}, resourceVersion=str(version))
            controller.seen("RLTrainingRun", "ADDED", run)
            await controller.attend(KEY)
            assert (controller._memory[KEY].plan is None) is suspend
        controller.queue.forget(KEY)

    asyncio.run(work())
