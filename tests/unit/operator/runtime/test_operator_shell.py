"""The parts of the shell that need no cluster: queue, store, driver client, probes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import generate_latest

from rl_operator.drivers.client import DriverAbsent, DriverError, DriverRefused, Drivers
from rl_operator.kube.client import proxy_of
from rl_operator.runtime.health import Health, queue_problem
from rl_operator.runtime.logs import JsonFormatter, TextFormatter
from rl_operator.runtime.metrics import Metrics
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


class FakeDriver:
    """A status server that answers what it is told to."""

    def __init__(self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        self._answer = answer

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def answering(status: int, body: object) -> FakeDriver:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    return FakeDriver(answer)


class TestDrivers:
    def test_progress_and_checkpoint(self) -> None:
        seen: list[str | None] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            seen.append(request.headers.get("Authorization"))
            body = {
                "phase": "Training",
                "step": 3,
                "maxSteps": 9,
                "new": 1,
                "checkpoint": {"step": 2, "uri": "u"},
            }
            return web.json_response(body)

        async def work() -> None:
            drivers = Drivers("x", Metrics())
            async with FakeDriver(answer) as url:
                progress, checkpoint = await drivers.status(url, "secret")
            await drivers.close()
            assert (progress.step, progress.phase) == (3, "Training")
            assert checkpoint is not None
            assert checkpoint.step == 2
            assert seen == ["Bearer secret"]

        run_async(work)

    @pytest.mark.parametrize(
        ("status", "body", "sentence"),
        [
            (401, {"error": "a bearer token is needed"}, "a bearer token is needed"),
            (200, "no json", "its answer (status 200) is no JSON object"),
            (200, {"phase": "Dreaming"}, "its answer has a wrong field"),
            (200, '"' + "x" * 1_100_000 + '"', "its answer is longer than"),
        ],
    )
    def test_nonsense_is_a_sentence(self, status: int, body: object, sentence: str) -> None:
        async def work() -> None:
            drivers = Drivers("x", Metrics())
            async with answering(status, body) as url:
                with pytest.raises(DriverError, match="^" + sentence.replace("(", r"\(").replace(")", r"\)")):
                    await drivers.status(url, "t")
            await drivers.close()

        run_async(work)

    def test_nobody_there(self) -> None:
        async def work() -> None:
            metrics = Metrics()
            drivers = Drivers("http://127.0.0.1:1/{namespace}/{run}/{service}/{port}", metrics)
            url = drivers.url(("team-a", "sums"), "svc", 8090)
            assert url == "http://127.0.0.1:1/team-a/sums/svc/8090"
            with pytest.raises(DriverAbsent, match="no connection"):
                await drivers.status(url, "t")
            await drivers.close()
            assert b'driver_calls_total{path="status",result="error"} 1.0' in generate_latest(
                metrics.registry
            )

        run_async(work)

    def test_a_checkpoint_is_waited_for(self) -> None:
        bodies: list[Any] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            bodies.append(await request.json())
            return web.json_response({"checkpoint": {"step": 4, "uri": "u"}})

        async def work() -> None:
            drivers = Drivers("x", Metrics())
            async with FakeDriver(answer) as url:
                found = await drivers.checkpoint(url, "t", 30)
            async with answering(409, {"error": "this run keeps no checkpoints"}) as url:
                with pytest.raises(DriverRefused, match="this run keeps no checkpoints"):
                    await drivers.checkpoint(url, "t", 30)
            await drivers.close()
            assert found is not None
            assert found.step == 4
            assert bodies == [{"timeoutSeconds": 30}]

        run_async(work)


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
