"""Drivers that answer, fall silent and change are followed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from aiohttp import web
from async_work import run_async
from fake_driver import FakeDriver

from rl_api.progress import CheckpointStatus, Phase, Progress
from rl_operator.drivers.client import DriverError, Drivers
from rl_operator.drivers.talks import Talks
from rl_operator.model.decision import Pull
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.metrics import Metrics

KEY = ("team-a", "sums")
PULL = Pull(1, "10.0.0.7", 8090)
Answer = tuple[Progress, CheckpointStatus | None] | Exception


class ScriptedDrivers(Drivers):
    """Drivers whose answers are given one by one; then they say nothing more."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__("http://{address}.{namespace}:{port}", Metrics().driver_called)
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
        talks = Talks(drivers, wake, lambda old, new, followed: 0.0 if old != new else None, pause=0.0)
        talks.follow(KEY, PULL, heard)
        await drivers.said_all.wait()
        talks.close()

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
    assert set(drivers.asked) == {("http://10.0.0.7.team-a:8090", "secret")}


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
        talks = Talks(drivers, lambda key, seconds: None, lambda old, new, followed: None)
        for pull in (PULL, PULL, replace(PULL, attempt=2, address="10.0.0.8")):
            talks.follow(KEY, pull, heard)
            await asyncio.sleep(0)
        talks.leave(KEY)
        talks.leave(KEY)
        return [url for url, _ in drivers.asked]

    assert run_async(work) == ["http://10.0.0.7.team-a:8090", "http://10.0.0.8.team-a:8090"]


class AnyDrivers(Drivers):
    """Drivers that answer what they are scripted to, by namespace."""

    def __init__(self, answer: Callable[[str], Awaitable[tuple[Progress, CheckpointStatus | None]]]) -> None:
        super().__init__("{namespace}", Metrics().driver_called)
        self.answer, self.asked = answer, Counter[str]()

    async def status(self, url: str, token: str) -> tuple[Progress, CheckpointStatus | None]:
        self.asked[url] += 1
        return await self.answer(url)


def test_silent_drivers_of_one_namespace_silence_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do those that never answer a wish for a checkpoint: over HTTP, with real connections."""
    # Till then none gives its place back.
    monkeypatch.setattr("rl_operator.drivers.client._STATUS_SECONDS", 60.0)
    silent = 0

    async def work() -> None:
        over, heard, memory = asyncio.Event(), asyncio.Event(), Memory("u", token="secret")

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal silent
            if request.path.startswith("/silent"):
                silent += 1
                await over.wait()
            return web.json_response({"phase": "Training", "step": 1})

        async with FakeDriver(answer) as url:
            drivers = Drivers(url + "/{namespace}", Metrics().driver_called)
            talks = Talks(drivers, lambda key, seconds: heard.set(), lambda old, new, followed: None)
            for number in range(300):
                talks.follow(("silent", f"run-{number}"), PULL, Memory("u"))
                talks.ask(("silent", f"run-{number}"), PULL, "w", 60.0, Memory("u"))
            while silent < 48 + 192:  # all places that one namespace may have
                await asyncio.sleep(0.01)
            talks.follow(KEY, PULL, memory)
            await heard.wait()
            assert memory.reading is not None
            over.set()
            talks.close()
            await drivers.close()

    run_async(work, 30.0)


def test_a_driver_that_does_not_answer_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def fail(url: str) -> tuple[Progress, CheckpointStatus | None]:
        raise DriverError("no answer within 3 s")

    async def work() -> None:
        talks = Talks(AnyDrivers(fail), lambda key, seconds: None, lambda old, new, followed: None)
        slept = asyncio.sleep

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await slept(0)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        talks.follow(KEY, PULL, Memory("u"))
        while len(pauses) < 7:
            await slept(0)
        talks.close()

    run_async(work)
    assert pauses == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_driver_that_changes_its_mind_all_the_time_is_heard_now_and_then() -> None:
    count, woken = 0, list[float]()

    async def flip(url: str) -> tuple[Progress, CheckpointStatus | None]:
        nonlocal count
        count += 1
        phase: Phase = "Training" if count % 2 else "Evaluating"
        return Progress(phase=phase, step=count), CheckpointStatus(step=count, uri=f"s3://{count}")

    async def work() -> None:
        def wake(key: tuple[str, str], seconds: float) -> None:
            woken.append(asyncio.get_running_loop().time() + seconds)

        talks = Talks(AnyDrivers(flip), wake, lambda old, new, followed: 0.0)
        talks.follow(KEY, PULL, Memory("u"))
        while len(woken) < 5:
            await asyncio.sleep(0.1)
        talks.close()

    run_async(work, virtual=True)
    assert min(after - before for before, after in pairwise(woken)) >= 2.99
    assert count > len(woken)


def test_the_last_word_of_a_driver_is_kept_however_soon_it_comes() -> None:
    words = [
        (Progress(phase="Checkpointing", step=4), None),
        (Progress(phase="Checkpointing", step=4), CheckpointStatus(step=4, uri="s3://4")),
        (Progress(phase="Succeeded", step=5), CheckpointStatus(step=4, uri="s3://4")),
    ]
    memory, woken = Memory("u"), list[float]()

    async def answer(url: str) -> tuple[Progress, CheckpointStatus | None]:
        if not words:
            raise DriverError("no connection")
        return words.pop(0)

    async def work() -> None:
        talks = Talks(
            AnyDrivers(answer),
            lambda key, seconds: woken.append(seconds),
            lambda old, new, followed: None,
            pause=1.0,
        )
        talks.follow(KEY, PULL, memory)
        while words:
            await asyncio.sleep(0.01)
        talks.close()

    run_async(work, virtual=True)
    assert memory.reading is not None
    assert (memory.reading.progress.phase, memory.reading.progress.step) == ("Succeeded", 5)
    assert woken[0] == 0.0
    assert len(woken) == 2, "at once, and once for both changes after that"


def test_the_more_drivers_a_namespace_has_the_less_often_each_is_asked() -> None:
    async def answer(url: str) -> tuple[Progress, CheckpointStatus | None]:
        return at_step(1), None

    async def work() -> tuple[int, float]:
        drivers, began = AnyDrivers(answer), time.monotonic()
        talks = Talks(drivers, lambda key, seconds: None, lambda old, new, followed: None, pause=0.1)
        for number in range(1000):
            talks.follow(("many", str(number)), PULL, Memory("u"))
        talks.follow(("one", "mine"), PULL, Memory("u"))
        while drivers.asked["one"] < 6:
            await asyncio.sleep(0.01)
        talks.close()
        return drivers.asked["many"], time.monotonic() - began

    # The one is asked every 0.1 s, and each of the others, as 200 are asked in that time, every 0.5 s.
    many, seconds = run_async(work, 200.0)
    assert many <= 1000 * (1 + seconds / 0.5)
