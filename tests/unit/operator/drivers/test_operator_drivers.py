"""The client of the drivers' status servers, against servers that answer anything."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from aiohttp import web
from async_work import run_async
from fake_driver import FakeDriver
from prometheus_client import generate_latest

from rl_api.progress import CheckpointStatus, Condition, Progress
from rl_operator.drivers.client import DriverAbsent, DriverError, DriverRefused, Drivers
from rl_operator.runtime.metrics import Metrics


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
            drivers = Drivers("x", Metrics().driver_called)
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
            (
                401,
                {"error": "a bearer token is needed"},
                "it does not take the operator's token: the Secret of the",
            ),
            (200, "[" * 5000, "its answer (status 200) is no JSON object that can be read"),
            (
                200,
                '{"phase": ' + "[" * 900 + "]" * 900 + "}",
                "its answer (status 200) is no JSON object that can be read",
            ),
            (
                200,
                '{"step": ' + "9" * 5000 + "}",
                "its answer (status 200) is no JSON object that can be read",
            ),
            (500, {"error": "\x1b]0;\u202e\n" + "x" * 999}, "\ufffd]0;\ufffd x"),
            (200, "no json", "its answer (status 200) is no JSON object"),
            (200, {"phase": "Dreaming"}, "its answer has a wrong field"),
            (200, '"' + "x" * 66_000 + '"', "its answer is longer than 65536 bytes"),
        ],
    )
    def test_nonsense_is_a_sentence(self, status: int, body: object, sentence: str) -> None:
        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with answering(status, body) as url:
                with pytest.raises(
                    DriverError,
                    match="^" + sentence.replace("(", r"\(").replace(")", r"\)").replace("]", r"\]"),
                ):
                    await drivers.status(url, "t")
            await drivers.close()

        run_async(work)

    def test_an_address_of_either_kind(self) -> None:
        drivers = Drivers("http://{address}:{port}", Metrics().driver_called)
        assert drivers.url(("team-a", "sums"), "10.0.0.7", 8090) == "http://10.0.0.7:8090"
        assert drivers.url(("team-a", "sums"), "fd00::7", 8090) == "http://[fd00::7]:8090"

    def test_what_one_driver_leaves_behind_is_told_to_no_other(self) -> None:
        """Cookies, which are kept by host name and address, and a redirect to somebody else."""
        told: list[tuple[str, str | None]] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            told.append((request.path, request.headers.get("Cookie")))
            if request.path == "/a/status":
                elsewhere = {"Location": "/elsewhere", "Set-Cookie": "spy=1; Path=/; Domain=localhost"}
                return web.Response(status=302, headers=elsewhere, text="{}")
            return web.json_response({"phase": "Training"}, headers={"Set-Cookie": "spy=2; Path=/"})

        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with FakeDriver(answer) as url:
                local = url.replace("127.0.0.1", "localhost")
                with pytest.raises(DriverError, match="status 302"):
                    await drivers.status(f"{local}/a", "t")
                await drivers.status(f"{local}/b", "t")
                await drivers.status(f"{local}/c", "t")
            await drivers.close()

        run_async(work)
        assert told == [("/a/status", None), ("/b/status", None), ("/c/status", None)]

    def test_no_proxy_of_the_environment_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")

        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with answering(200, {"phase": "Training"}) as url:
                assert (await drivers.status(url, "t"))[0].phase == "Training"
            await drivers.close()

        run_async(work)

    def test_nobody_there(self) -> None:
        async def work() -> None:
            metrics = Metrics()
            drivers = Drivers("http://127.0.0.1:1/{namespace}/{run}/{address}/{port}", metrics.driver_called)
            url = drivers.url(("team-a", "sums"), "10.0.0.7", 8090)
            assert url == "http://127.0.0.1:1/team-a/sums/10.0.0.7/8090"
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
            wish = request.headers["Idempotency-Key"]
            return web.json_response({"id": wish, "checkpoint": {"step": 4, "uri": "u"}})

        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with FakeDriver(answer) as url:
                found = await drivers.checkpoint(url, "t", "w", 30)
            async with answering(
                200, {"checkpoint": {"step": 4, "uri": "u"}}
            ) as url:  # one that knows no ids
                assert await drivers.checkpoint(url, "t", "w", 30) == found
            async with answering(200, {"id": "v", "checkpoint": {"step": 4, "uri": "u"}}) as url:
                with pytest.raises(DriverError, match="its answer is to another request"):
                    await drivers.checkpoint(url, "t", "w", 30)
            async with answering(409, {"error": "this run keeps no checkpoints"}) as url:
                with pytest.raises(DriverRefused, match="this run keeps no checkpoints"):
                    await drivers.checkpoint(url, "t", "w", 30)
            await drivers.close()
            assert found is not None
            assert found.step == 4
            assert bodies == [{"timeoutSeconds": 30}]

        run_async(work)

    @pytest.mark.parametrize(
        "figures",
        [
            '{"phase": "Training", "step": 100000000000000000000, "reward": 0.5}',
            '{"phase": "Training", "reward": 0.5, "tokensPerSecond": Infinity, "bufferFill": 3, "staleness": NaN}',
            '{"phase": "Training", "reward": 0.5, "etaSeconds": -1, "heldoutScore": 1e999}',
            '{"phase": "Training", "reward": 0.5, "maxSteps": "many", "updatedAt": "2026-03-01T12:00:00"}',
            '{"phase": "Training", "reward": 0.5, "checkpoint": {"step": 1e30, "uri": "u"}}',
            '{"phase": "Training", "reward": 0.5, "checkpoint": [[{}]]}',
            '{"phase": "Training", "reward": 0.5, "checkpoint": {"step": 1, "uri": "\\ud800"}}',
        ],
    )
    def test_a_figure_that_is_none_counts_as_not_said(self, figures: str) -> None:
        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with answering(200, figures) as url:
                progress, checkpoint = await drivers.status(url, "t")
            await drivers.close()
            assert progress == Progress(phase="Training", reward=0.5)
            assert checkpoint is None

        run_async(work)

    def test_a_checkpoint_keeps_its_step_where_its_time_is_none(self) -> None:
        async def work() -> None:
            body = {"checkpoint": {"step": 4, "uri": "u", "time": "2026-03-01T12:00:00"}}
            drivers = Drivers("x", Metrics().driver_called)
            async with answering(200, body) as url:
                assert await drivers.checkpoint(url, "t", "w", 30) == CheckpointStatus(step=4, uri="u")
            await drivers.close()

        run_async(work)

    def test_what_a_driver_says_can_be_stored(self) -> None:
        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with answering(409, '{"error": "\\ud800' + "x" * 5000 + '"}') as url:
                with pytest.raises(DriverRefused) as caught:
                    await drivers.checkpoint(url, "t", "w", 30)
            await drivers.close()
            assert Condition(type="Suspended", status="Unknown", message=str(caught.value))
            assert len(str(caught.value)) == 300

        run_async(work)

    def test_what_is_packed_is_not_unpacked(self) -> None:
        asked: list[str | None] = []
        packed = gzip.compress(b'{"phase": "Training", "new": "' + b"x" * 50_000_000 + b'"}')
        assert len(packed) < 1 << 16

        async def answer(request: web.Request) -> web.StreamResponse:
            asked.append(request.headers.get("Accept-Encoding"))
            return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

        async def work() -> None:
            drivers = Drivers("x", Metrics().driver_called)
            async with FakeDriver(answer) as url:
                with pytest.raises(DriverError, match="no JSON object"):
                    await drivers.status(url, "t")
            await drivers.close()

        run_async(work)
        assert asked == ["identity"]
