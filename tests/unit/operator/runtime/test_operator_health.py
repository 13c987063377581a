from __future__ import annotations

import aiohttp
from async_work import run_async

from rl_operator.runtime.health import Health, queue_problem
from rl_operator.runtime.metrics import Metrics


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
