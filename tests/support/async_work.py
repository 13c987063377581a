"""Coroutines in tests that are none themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


def run_async(work: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """What `work` comes to, within so many seconds."""

    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await work()

    return asyncio.run(bounded())
