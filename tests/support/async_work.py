"""Coroutines in tests that are none themselves."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class _VirtualClock(asyncio.SelectorEventLoop):
    """A loop on which waiting takes no time: where nobody can go on, it is the time at which the next one can."""

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                found = super().select(timeout and 0.0)
                if not found and timeout:
                    loop._now += timeout
                return found

        super().__init__(Selector())

    def time(self) -> float:
        return self._now


def run_async(work: Callable[[], Awaitable[Any]], seconds: float = 20.0, *, virtual: bool = False) -> Any:
    """What `work` comes to, within so many seconds. `virtual`: of a clock that no busy machine holds up, for coroutines that
    wait for each other and for times of their loop, not for threads, files or sockets."""

    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await work()

    with asyncio.Runner(loop_factory=_VirtualClock if virtual else None) as runner:
        return runner.run(bounded())
