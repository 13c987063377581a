"""Drivers that answer, fall silent and change are followed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from async_work import run_async

from rl_api.progress import CheckpointStatus, Progress
from rl_operator.drivers.client import DriverError, Drivers
from rl_operator.drivers.pull import Pulls
from rl_operator.model.decision import Pull
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.metrics import Metrics

KEY = ("team-a", "sums")
PULL = Pull(1, "svc", 8090)
Answer = tuple[Progress, CheckpointStatus | None] | Exception


class ScriptedDrivers(Drivers):
    """Drivers whose answers are given one by one; then they say nothing more."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__("http://{service}.{namespace}:{port}", Metrics())
        self.answers, self.asked = answers, list[tuple[str, str]]()
        self.said_all = asyncio.Event()

    async def status(self, url: str, token: str) -> tuple[Progress, CheckpointStatus | None]:
        self.asked.append((url, token))
        if not self.answers:
            self.said_all.set()
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def at_step(step: int) -> Progress:
    return Progress(phase="Training", step=step)


def follow(*answers: Answer) -> tuple[list[tuple[int, str]], Memory, ScriptedDrivers]:
    """What is known (step, error) each time that the run is woken, until all answers are given."""
    drivers, heard = ScriptedDrivers(list(answers)), Memory("u", token="secret")
    told: list[tuple[int, str]] = []

    def wake(key: tuple[str, str], seconds: float) -> None:
        assert (key, seconds) == (KEY, 0.0)
        told.append((heard.reading.progress.step if heard.reading else -1, heard.reading_error))

    async def work() -> None:
        pulls = Pulls(drivers, wake, lambda old, new: 0.0 if old != new else None, seconds=0.0)
        pulls.follow(KEY, PULL, heard)
        await drivers.said_all.wait()
        pulls.close()

    run_async(work)
    return told, heard, drivers


def test_news_wakes_the_run_and_the_same_again_does_not() -> None:
    kept = CheckpointStatus(step=2, uri="u")
    told, heard, drivers = follow(
        (at_step(1), None), (at_step(1), None), (at_step(2), None), (at_step(2), kept), (at_step(2), kept)
    )
    assert told == [(1, ""), (2, ""), (2, "")]
    assert heard.reading is not None
    assert (heard.reading.attempt, heard.reading.checkpoint) == (1, kept)
    assert set(drivers.asked) == {("http://svc.team-a:8090", "secret")}


def test_a_driver_that_does_not_answer_is_told_of_once_and_after_three_tries() -> None:
    silent = [DriverError("no answer within 3 s")] * 5
    assert follow(*silent[:2])[0] == []
    told, heard, _ = follow((at_step(1), None), *silent)
    assert told == [(1, ""), (1, "no answer within 3 s")]
    told, heard, _ = follow(*silent, (at_step(1), None), *silent[:2])
    assert told == [(-1, "no answer within 3 s"), (1, "")]
    assert heard.reading_error == ""


def test_what_nobody_expected_ends_nothing() -> None:
    assert follow(ValueError("broken"), (at_step(1), None))[0] == [(1, "")]


def test_one_driver_of_a_run_is_asked() -> None:
    drivers, heard = ScriptedDrivers([]), Memory("u")

    async def work() -> list[str]:
        pulls = Pulls(drivers, lambda key, seconds: None, lambda old, new: None)
        for pull in (PULL, PULL, replace(PULL, attempt=2, service="other")):
            pulls.follow(KEY, pull, heard)
            await asyncio.sleep(0)
        pulls.leave(KEY)
        pulls.leave(KEY)
        return [url for url, _ in drivers.asked]

    assert run_async(work) == ["http://svc.team-a:8090", "http://other.team-a:8090"]
