"""The parts of the shell that need no cluster: queue, store, driver client, probes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import aiohttp
import pytest
from operator_worlds import make_profile, make_run

from rl_operator.kube.cache import Store
from rl_operator.kube.client import proxy_of
from rl_operator.runtime.health import Health, queue_problem
from rl_operator.runtime.logs import JsonFormatter, TextFormatter
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.watches import Watches
from rl_operator.runtime.work_queue import WorkQueue


def run_async(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work()

    return asyncio.run(bounded())


class TestQueue:
    def test_a_key_is_in_it_once(self) -> None:
        async def work() -> None:
            depths: list[int] = []
            queue: WorkQueue[str] = WorkQueue(depths.append)
            for key in ("a", "b", "a"):
                queue.add(key)
            assert queue.depth == 2
            assert [await queue.get(), await queue.get()] == ["a", "b"]
            assert depths == [1, 2, 1, 0]
            assert queue.oldest == 0.0

        run_async(work)

    def test_nobody_else_gets_a_key_that_is_worked_on(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            queue.add("a")
            assert await queue.get() == "a"
            queue.add("a")
            queue.add("a")
            assert queue.depth == 0
            queue.done("a")
            assert queue.depth == 1
            assert await queue.get() == "a"
            queue.done("a")
            assert queue.depth == 0

        run_async(work)

    def test_what_is_urgent_comes_first_and_starves_nobody(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            for number in range(3):
                queue.add(f"old-{number}")
            for number in range(8):
                queue.add(f"new-{number}", urgent=True)
            queue.add("old-2", urgent=True)
            queue.add("new-0")
            assert queue.pressed
            taken = [await queue.get() for _ in range(queue.depth)]
            assert taken[:8] == [*(f"new-{number}" for number in range(7)), "old-0"]
            assert taken[8:] == ["new-7", "old-2", "old-1"]
            assert not queue.pressed
            queue.add("old-1")
            queue.add("new-0", urgent=True)
            queue.done("old-1")
            queue.done("new-0")
            queue.done("new-1")
            assert queue.depth == 2
            assert queue.pressed

        run_async(work)

    def test_later_is_later_and_the_earlier_time_counts(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            queue.add_after("a", 600)
            queue.add_after("a", 0.01)
            queue.add_after("a", 300)
            queue.add_after("b", 600)
            assert queue.depth == 0
            assert await queue.get() == "a"
            queue.add("b")
            assert await queue.get() == "b"
            queue.add_after("c", 0)
            assert queue.depth == 1
            queue.add_after("d", 0.01)
            queue.forget("d")
            await queue.get()
            await asyncio.sleep(0.05)
            assert queue.depth == 0

        run_async(work)


def stored(kind: str, name: str, version: int, uid: str = "u", **parts: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {"rltrain.dev/run": "sums", "rltrain.dev/attempt": "1"},
        **parts.pop("metadata", {}),
    }
    return {"kind": kind, "metadata": metadata, **parts}


OWNED = {"ownerReferences": [{"kind": "RLTrainingRun", "uid": "12345678-90ab"}]}
KEY = ("team-a", "sums")


class TestStore:
    def test_objects_are_found_by_their_run(self) -> None:
        store = Store()
        assert store.put(make_run()) == [KEY]
        assert store.put(stored("Pod", "p", 5)) == [KEY]
        assert store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED)) == [KEY]
        assert [(name, seen.kind) for name, seen in store.of_run(KEY)] == [("p", "Pod"), ("sums-1", "RayJob")]
        assert store.put(make_profile()) == [KEY]
        assert [profile["metadata"]["name"] for profile in store.profiles()] == ["shared"]
        assert store.phases() == {"Pending": 1}

    def test_older_news_is_dropped(self) -> None:
        store = Store()
        store.put(stored("Pod", "p", 5, status={"phase": "Running"}))
        assert store.put(stored("Pod", "p", 4, status={"phase": "Pending"})) == []
        assert store.put(stored("Pod", "p", 5)) == []
        assert store.version("Pod", ("team-a", "p"), "u") == 5
        assert store.version("Pod", ("team-a", "p"), "other") is None

    def test_what_was_deleted_does_not_come_back(self) -> None:
        store = Store()
        pod = stored("Pod", "p", 5)
        store.put(pod)
        assert store.drop(pod) == [KEY]
        assert store.put(stored("Pod", "p", 9)) == []
        assert store.was_deleted("u")
        assert list(store.of_run(KEY)) == []
        store.put(stored("Pod", "p", 10, "another"))
        assert store.drop(stored("Pod", "p", 11)) == [], "another pod has the name by now"
        assert len(list(store.of_run(KEY))) == 1

    def test_the_ray_cluster_of_a_ray_job_is_not_ours(self) -> None:
        owner = {"ownerReferences": [{"kind": "RayJob", "uid": "r"}]}
        assert Store().put(stored("RayCluster", "sums-1-abcde", 5, metadata=owner)) == []

    def test_the_end_of_a_pod_is_remembered(self) -> None:
        store = Store()
        ended = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]}
        store.put(stored("Pod", "p", 5))
        store.drop(stored("Pod", "p", 6, status=ended))
        (pod,) = store.ended_pods(KEY)
        assert pod.gone
        assert pod.containers[0].ended == "OOMKilled"
        store.put(make_run())
        assert store.drop(make_run()) == [KEY]
        assert store.ended_pods(KEY) == []
        assert store.run(KEY) is None

    def test_what_went_unseen_is_forgotten(self) -> None:
        store = Store()
        ended = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]}
        store.put(stored("Pod", "p", 5, status=ended))
        store.put(stored("RayJob", "sums-1", 6, "r", metadata=OWNED))
        assert store.known("RayJob") == {("team-a", "sums-1"): ("r", 6)}
        assert store.gone("RayJob", ("team-a", "sums-1"), "another") == [], "not the one that is known"
        assert store.gone("RayJob", ("team-a", "sums-1"), "r") == [KEY]
        assert store.gone("Pod", ("team-a", "p"), "u") == [KEY]
        assert list(store.of_run(KEY)) == []
        assert [pod.containers[0].ended for pod in store.ended_pods(KEY)] == ["OOMKilled"]
        assert store.put(stored("RayJob", "sums-1", 7, "r", metadata=OWNED)) == [], "it does not come back"

    def test_objects_without_our_label_concern_nobody(self) -> None:
        assert Store().put(stored("Pod", "p", 5, metadata={"labels": {}})) == []


class FakeController:
    """What the watches ask of the controller: all objects of a kind, and a place for what they see."""

    def __init__(self) -> None:
        self.store = Store()
        self.there: list[dict[str, Any]] = []

    async def list(self, kind: str, *, metadata_only: bool) -> tuple[list[dict[str, Any]], int]:
        assert metadata_only
        return [item for item in self.there if item["kind"] == kind], 100

    def missing(self, kind: str, place: tuple[str, str], uid: str) -> None:
        self.store.gone(kind, place, uid)


class TestWatches:
    CHILD: ClassVar = {"ownerReferences": [{"kind": "RayJob", "uid": "r", "controller": True}]}

    def look(self, controller: FakeController) -> list[str]:
        missed = run_async(Watches(controller)._missed)  # type: ignore[arg-type]
        return sorted(f"{kind} {place[1]} {version}" for kind, place, _, version in missed)

    def test_a_change_of_any_object_that_was_not_told_is_noticed(self) -> None:
        controller = FakeController()
        samplers = {"spec": {"workerGroupSpecs": [{"groupName": "sampler", "replicas": 1}]}}
        child = stored("RayCluster", "sums-1-abcde", 7, "c", metadata=self.CHILD, **samplers)
        other = stored("RayCluster", "of-somebody-else", 8, "o", metadata={"labels": {}})
        controller.there = [child, other, stored("RayJob", "sums-1", 9, "r", metadata=OWNED)]
        assert self.look(controller) == [
            "RayCluster of-somebody-else 8",
            "RayCluster sums-1-abcde 7",
            "RayJob sums-1 9",
        ]
        for item in controller.there:
            controller.store.put(item)
        assert self.look(controller) == []
        controller.there[0] = stored("RayCluster", "sums-1-abcde", 11, "c", metadata=self.CHILD, **samplers)
        assert self.look(controller) == ["RayCluster sums-1-abcde 11"]

    def test_what_went_unseen_is_forgotten(self) -> None:
        controller = FakeController()
        controller.store.put(stored("RayCluster", "sums-1-abcde", 7, "c", metadata=self.CHILD))
        assert self.look(controller) == []
        assert controller.store.was_deleted("c")


class TestHealth:
    def test_probes_say_what_is_wrong(self) -> None:
        async def work() -> None:
            health = Health(Metrics())
            wrong = ""
            health.watch("watches", lambda: wrong)
            await health.start("127.0.0.1:0", "127.0.0.1:0")
            assert len(health.ports) == 2
            async with aiohttp.ClientSession() as session:

                async def ask(path: str, port: int) -> tuple[int, str]:
                    async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                        return answer.status, await answer.text()

                assert await ask("/healthz", health.ports[0]) == (200, "ok\n")
                wrong = "they missed a pod"
                assert await ask("/healthz", health.ports[1]) == (503, "watches: they missed a pod\n")
                assert (await ask("/readyz", health.ports[0]))[0] == 503
                health.ready = True
                assert (await ask("/readyz", health.ports[0]))[0] == 200
                assert "rltrain_operator_queue_depth" in (await ask("/metrics", health.ports[1]))[1]
            await health.stop()

        run_async(work)

    def test_workers_that_stand_still(self) -> None:
        assert queue_problem(0.0, -1e9) == ""
        assert "a run has been waiting for 500 s" in queue_problem(500.0, -1e9)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.0.0.1", None),
        ("http://api.example.com", None),
        ("", None),
    ],
)
def test_the_proxy_of_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "10.0.0.1,localhost")
    assert proxy_of(url) == proxy


def test_logs_have_run_and_attempt() -> None:
    record = logging.makeLogRecord(
        {"name": "rl_operator", "levelname": "INFO", "msg": "begins", "run": "sums"}
    )
    record.attempt, record.namespace = 2, "team-a"
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["run"], line["attempt"], line["level"]) == ("begins", "sums", 2, "info")
    assert TextFormatter().format(record).endswith("INFO    team-a/sums #2 begins")
