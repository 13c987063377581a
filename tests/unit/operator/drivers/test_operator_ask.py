"""What becomes of the wish for a checkpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from async_work import run_async
from operator_worlds import make_reading

from rl_api.progress import CheckpointStatus
from rl_operator.drivers.client import DriverAbsent, DriverError, DriverRefused, Drivers
from rl_operator.drivers.talks import Talks
from rl_operator.model.decision import Pull
from rl_operator.model.seen import Ask
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.metrics import Metrics

KEY = ("team-a", "sums")
PULL = Pull(3, "10.0.0.7", 8090)


class OneDriver(Drivers):
    """A driver that answers when it is let."""

    def __init__(self, answer: CheckpointStatus | Exception | None) -> None:
        super().__init__("http://{address}.{namespace}:{port}", Metrics().driver_called)
        self.answer, self.let = answer, asyncio.Event()
        self.asked: list[tuple[str, str, str, float]] = []

    async def checkpoint(self, url: str, token: str, wish: str, seconds: float) -> CheckpointStatus | None:
        self.asked.append((url, token, wish, seconds))
        await self.let.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ask(answer: CheckpointStatus | Exception | None) -> tuple[Memory, OneDriver]:
    """Ask, ask again while the driver works, and let it answer."""
    memory = Memory("u", token="secret", reading=make_reading(attempt=3))
    driver = OneDriver(answer)

    async def work() -> None:
        woken = asyncio.Event()
        talks = Talks(driver, lambda key, seconds: woken.set(), lambda old, new: None, pause=0.0)
        for _ in range(2):
            talks.ask(KEY, PULL, "w", 60.0, memory)
            await asyncio.sleep(0)
            assert memory.ask == Ask("w", 3, "running")
        driver.let.set()
        await woken.wait()
        talks.close()

    run_async(work)
    assert driver.asked == [("http://10.0.0.7.team-a:8090", "secret", "w", 60.0)]
    return memory, driver


def test_a_checkpoint_is_known_at_once() -> None:
    kept = CheckpointStatus(step=9, uri="u")
    memory, _ = ask(kept)
    assert memory.ask == Ask("w", 3, "done")
    assert memory.reading is not None
    assert (memory.reading.checkpoint, memory.reading.progress.step) == (kept, 7)


def test_a_driver_that_does_not_say_which_changes_no_reading() -> None:
    memory, _ = ask(None)
    assert memory.ask == Ask("w", 3, "done")
    assert memory.reading == make_reading(attempt=3)


@pytest.mark.parametrize(
    ("error", "state"),
    [(DriverRefused("no"), "refused"), (DriverAbsent("no"), "absent"), (DriverError("no"), "failed")],
)
def test_every_failure_has_its_word(error: Exception, state: Any) -> None:
    assert ask(error)[0].ask == Ask("w", 3, state, "no")


def test_a_run_that_is_gone_waits_for_nothing() -> None:
    driver, memory = OneDriver(None), Memory("u")
    woken: list[tuple[str, str]] = []

    async def work() -> None:
        talks = Talks(driver, lambda key, seconds: woken.append(key), lambda old, new: None)
        talks.ask(KEY, PULL, "w", 60.0, memory)
        await asyncio.sleep(0)
        talks.leave(KEY)
        driver.let.set()
        for _ in range(5):
            await asyncio.sleep(0)

    run_async(work)
    assert len(driver.asked) == 1
    assert woken == []


def test_another_wish_does_not_wait_for_the_answer_to_the_first() -> None:
    driver, memory = OneDriver(CheckpointStatus(step=9, uri="u")), Memory("u", token="secret")

    async def work() -> None:
        woken = asyncio.Event()
        talks = Talks(driver, lambda key, seconds: woken.set(), lambda old, new: None, pause=0.0)
        for wish in ("first", "second"):
            talks.ask(KEY, PULL, wish, 60.0, memory)
            await asyncio.sleep(0)
        assert memory.ask == Ask("second", 3, "running")
        driver.let.set()
        await woken.wait()

    run_async(work)
    assert [wish for _, _, wish, _ in driver.asked] == ["first", "second"]
    assert memory.ask == Ask("second", 3, "done")


def test_a_wish_that_never_has_its_turn_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_operator.drivers.talks._MARGIN", 0.0)
    driver, memories = OneDriver(None), [Memory("u") for _ in range(256)]

    async def work() -> None:
        woken = asyncio.Event()
        talks = Talks(driver, lambda key, seconds: woken.set(), lambda old, new: None, pause=0.0)
        for number, memory in enumerate(memories):
            talks.ask(("team-a", str(number)), PULL, "w", 0.05 if number == 255 else 60.0, memory)
        await woken.wait()
        talks.close()

    run_async(work)
    assert len(driver.asked) == 192
    why = "other drivers of this namespace did not answer for 0.05 s, and it was not asked"
    assert memories[-1].ask == Ask("w", 3, "failed", why)
