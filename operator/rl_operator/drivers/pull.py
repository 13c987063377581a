"""Asking drivers for their progress, again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from rl_api.progress import Progress
from rl_operator.drivers.client import DriverError, Drivers
from rl_operator.model.decision import Pull
from rl_operator.model.seen import Reading

LOG = logging.getLogger("rl_operator")

_BEARABLE = 2
"""So many requests in a row may fail before anybody is told."""


class Heard(Protocol):
    """What is known of one run's driver: the token that it wants, and what it said last."""

    token: str | None
    reading: Reading | None
    reading_error: str


class Pulls:
    """At most one driver of each run is asked."""

    def __init__(
        self,
        drivers: Drivers,
        wake: Callable[[tuple[str, str], float], None],
        news: Callable[[Progress, Progress], float | None],
        seconds: float = 1.0,
    ) -> None:
        """Prepare; nobody is asked yet.

        Args:
            drivers: all drivers.
            wake: is told of a run of which there is news, and in how many seconds it wants to be looked at.
            news: in how many seconds a second reading wants to be seen after a first; None: it says nothing new.
            seconds: between two requests to one driver.
        """
        self._drivers, self._wake, self._news, self._seconds = drivers, wake, news, seconds
        self._tasks: dict[tuple[str, str], tuple[Pull, asyncio.Task[None]]] = {}

    def follow(self, key: tuple[str, str], pull: Pull, heard: Heard) -> None:
        """Keep asking this driver of a run, and no other."""
        known = self._tasks.get(key)
        if known is None or known[0] != pull or known[1].done():
            self.leave(key)
            self._tasks[key] = pull, asyncio.create_task(self._keep_asking(key, pull, heard))

    def leave(self, key: tuple[str, str]) -> None:
        """Ask no driver of a run any more."""
        known = self._tasks.pop(key, None)
        if known is not None:
            known[1].cancel()

    def close(self) -> None:
        """Ask nobody any more."""
        for key in list(self._tasks):
            self.leave(key)

    async def _keep_asking(self, key: tuple[str, str], pull: Pull, heard: Heard) -> None:
        url, failures = self._drivers.url(key, pull.service, pull.port), 0
        while True:
            try:
                progress, checkpoint = await self._drivers.status(url, heard.token or "")
            except DriverError as error:
                failures += 1
                if failures > _BEARABLE and heard.reading_error != str(error):
                    heard.reading_error = str(error)
                    self._wake(key, 0.0)
            except Exception:
                LOG.exception("asking a driver failed", extra={"namespace": key[0], "run": key[1]})
            else:
                failures, heard.reading_error = 0, ""
                old = heard.reading
                heard.reading = Reading(pull.attempt, datetime.now(UTC), progress, checkpoint)
                urgent = old is None or old.checkpoint != checkpoint
                seconds = 0.0 if urgent or old is None else self._news(old.progress, progress)
                if seconds is not None:
                    self._wake(key, seconds)
            await asyncio.sleep(self._seconds)
