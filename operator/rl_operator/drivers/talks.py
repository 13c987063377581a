"""Talking to drivers: each is asked for its progress again and again, and brought the wish for a checkpoint.

A driver may be anything that a user runs. One that is silent, or slow, costs the runs of other namespaces nothing; one that
changes its mind all the time is heard now and then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from rl_api.progress import Progress
from rl_operator.drivers.client import DriverAbsent, DriverError, DriverRefused, Drivers
from rl_operator.drivers.places import Places
from rl_operator.model.decision import Pull
from rl_operator.model.names import Key
from rl_operator.model.seen import Ask, Reading

LOG = logging.getLogger("rl_operator")

_BEARABLE: Final = 2
"""So many requests in a row may fail before anybody is told."""
_MOST_DOUBLINGS: Final = 10
_LONGEST_PAUSE: Final = 10.0
"""Seconds until a driver is asked again that does not answer."""
_A_SECOND: Final = 200
"""Drivers of one namespace that are asked within a second."""
_CALM: Final = 3
"""What a driver says is kept at once; another phase or checkpoint wakes its run so many pauses after the one before, at the
earliest."""
_QUESTIONS: Final = 64
_WISHES: Final = 256
"""Requests under way together: for progress, which take a moment, and for checkpoints, which may take an hour."""
_MARGIN: Final = 10.0
"""Seconds beyond those of a wish until it is given up unasked; a driver that was asked has its own deadline before."""


class Heard(Protocol):
    """What was heard of one run's driver: the token that it wants, what it said last, and what became of a wish."""

    token: str | None
    reading: Reading | None
    reading_error: str
    ask: Ask | None


class Talks:
    """At most one driver of each run is followed, and at most one wish of each run is under way."""

    def __init__(
        self,
        drivers: Drivers,
        wake: Callable[[Key, float], None],
        news: Callable[[Progress, Progress, int], float | None],
        pause: float = 1.0,
    ) -> None:
        """Prepare; nobody is asked yet.

        Args:
            drivers: where to ask.
            wake: is told of a run of which there is news, and in how many seconds it wants to be looked at.
            news: in how many seconds a second reading wants to be seen after a first, of one of so many drivers that are
                followed; None: it says nothing new.
            pause: seconds between two requests for progress, and after a wish that a driver, busy for a moment, failed.
        """
        self._drivers, self._wake, self._news, self._pause = drivers, wake, news, pause
        self._tasks: dict[tuple[str, Key], tuple[object, asyncio.Task[None]]] = {}
        self._followed: Counter[str] = Counter()
        self._questions, self._wishes = Places(_QUESTIONS), Places(_WISHES)

    def followed(self, namespace: str) -> int:
        """How many drivers would be followed if every namespace had as many as this one: of these it has its share."""
        return self._followed[namespace] * len(self._followed)

    def follow(self, key: Key, pull: Pull | None, heard: Heard) -> None:
        """Keep asking this driver of a run, and no other; None: none."""
        if pull is None:
            self._stop(("progress", key))
        else:
            self._keep(("progress", key), pull, self._keep_asking, key, pull, heard)

    def ask(self, key: Key, pull: Pull, wish: str, seconds: float, heard: Heard) -> None:
        """Ask a driver for a checkpoint, for which it may take some seconds, unless it is being asked for this one.

        It knows the wish again by its id.
        """
        self._keep(("checkpoint", key), wish, self._bring, key, pull, wish, seconds, heard)

    def leave(self, key: Key) -> None:
        """Ask no driver of a run any more, and wait for no answer."""
        self._stop(("progress", key))
        self._stop(("checkpoint", key))

    def close(self) -> None:
        """Ask nobody any more."""
        for what in list(self._tasks):
            self._stop(what)

    def _keep(self, what: tuple[str, Key], about: object, work: Callable[..., Any], *arguments: Any) -> None:
        """Be at this work of a run, and at none of its kind that is about something else."""
        known = self._tasks.get(what)
        if known is None or known[0] != about or known[1].done():
            self._stop(what)
            self._tasks[what] = about, asyncio.create_task(work(*arguments))
            self._followed[what[1][0]] += what[0] == "progress"

    def _stop(self, what: tuple[str, Key]) -> None:
        if what in self._tasks:
            self._tasks.pop(what)[1].cancel()
            self._followed -= Counter({what[1][0]: int(what[0] == "progress")})

    async def _keep_asking(self, key: Key, pull: Pull, heard: Heard) -> None:
        # When the run was, or will be, woken for another phase or checkpoint: then it sees what was said last.
        url, failures, woken = self._drivers.url(key, pull.address, pull.port), 0, -math.inf
        while True:
            pause = self._pause * max(1.0, self._followed[key[0]] / _A_SECOND)
            try:
                async with self._questions.of(key[0]):
                    progress, checkpoint = await self._drivers.status(url, heard.token or "")
            except DriverError as error:
                failures += 1
                if failures > _BEARABLE and heard.reading_error != str(error):
                    heard.reading_error = str(error)
                    self._wake(key, 0.0)
            except Exception:
                failures += 1
                LOG.exception("asking a driver failed", extra={"namespace": key[0], "run": key[1]})
            else:
                failures, heard.reading_error = 0, ""
                old, now = heard.reading, asyncio.get_running_loop().time()
                another = old is None or (old.progress.phase, old.checkpoint) != (progress.phase, checkpoint)
                heard.reading = Reading(pull.attempt, datetime.now(UTC), progress, checkpoint)
                if old is not None and not another:
                    seconds = self._news(old.progress, progress, self.followed(key[0]))
                    if seconds is not None:
                        self._wake(key, seconds)
                elif woken <= now:
                    woken = max(now, woken + _CALM * pause)
                    self._wake(key, woken - now)
            if failures > _BEARABLE:
                again = self._pause * 2 ** min(failures - _BEARABLE, _MOST_DOUBLINGS)
                pause = max(pause, min(again, _LONGEST_PAUSE))
            await asyncio.sleep(pause)

    async def _bring(self, key: Key, pull: Pull, wish: str, seconds: float, heard: Heard) -> None:
        heard.ask = Ask(wish, pull.attempt, "running")
        url = self._drivers.url(key, pull.address, pull.port)
        try:
            async with asyncio.timeout(seconds + _MARGIN), self._wishes.of(key[0]):
                checkpoint = await self._drivers.checkpoint(url, heard.token or "", wish, seconds)
        except TimeoutError:
            why = f"other drivers of this namespace did not answer for {seconds:g} s, and it was not asked"
            heard.ask = Ask(wish, pull.attempt, "failed", why)
        except DriverRefused as error:
            heard.ask = Ask(wish, pull.attempt, "refused", str(error))
        except DriverError as error:
            await asyncio.sleep(self._pause)
            absent = isinstance(error, DriverAbsent)
            heard.ask = Ask(wish, pull.attempt, "absent" if absent else "failed", str(error))
        else:
            heard.ask = Ask(wish, pull.attempt, "done")
            if checkpoint is not None and heard.reading is not None:
                heard.reading = replace(heard.reading, checkpoint=checkpoint)
        self._wake(key, 0.0)
