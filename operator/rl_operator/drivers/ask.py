"""Bringing the wish for a checkpoint to a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rl_operator.drivers.client import DriverAbsent, DriverError, DriverRefused, Drivers
from rl_operator.model.decision import Pull
from rl_operator.model.seen import Ask, Reading


class Asked(Protocol):
    """What is known of one run's driver: the token that it wants, what it said last, and what became of a wish."""

    token: str | None
    reading: Reading | None
    ask: Ask | None


class Asks:
    """At most one wish of each run is under way."""

    def __init__(self, drivers: Drivers, wake: Callable[[tuple[str, str]], None], pause: float = 1.0) -> None:
        """Prepare; nothing is asked for yet.

        Args:
            drivers: all drivers.
            wake: is told of a run whose wish has come to something.
            pause: seconds after a failure: the driver may be busy for a moment, and is not asked again at once.
        """
        self._drivers, self._wake, self._pause = drivers, wake, pause
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def ask(self, key: tuple[str, str], pull: Pull, wish: str, seconds: float, asked: Asked) -> None:
        """Ask a driver for a checkpoint, for which it may take some seconds, unless it is being asked for this one.

        Args:
            key: the run.
            pull: its driver.
            wish: id of the wish, by which the driver knows it again.
            seconds: that it may take.
            asked: what is known of the driver.
        """
        task, before = self._tasks.get(key), asked.ask
        if task is None or task.done() or before is None or before.id != wish:
            self.leave(key)
            asked.ask = Ask(wish, pull.attempt, "running")
            self._tasks[key] = asyncio.create_task(self._bring(key, pull, wish, seconds, asked))

    def leave(self, key: tuple[str, str]) -> None:
        """Wait for no answer of a run any more."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Wait for nobody any more."""
        for key in list(self._tasks):
            self.leave(key)

    async def _bring(self, key: tuple[str, str], pull: Pull, wish: str, seconds: float, asked: Asked) -> None:
        url = self._drivers.url(key, pull.service, pull.port)
        try:
            checkpoint = await self._drivers.checkpoint(url, asked.token or "", wish, seconds)
        except DriverRefused as error:
            asked.ask = Ask(wish, pull.attempt, "refused", str(error))
        except DriverError as error:
            await asyncio.sleep(self._pause)
            asked.ask = Ask(
                wish, pull.attempt, "absent" if isinstance(error, DriverAbsent) else "failed", str(error)
            )
        else:
            asked.ask = Ask(wish, pull.attempt, "done")
            if checkpoint is not None and asked.reading is not None:
                asked.reading = replace(asked.reading, checkpoint=checkpoint)
        self._wake(key)
