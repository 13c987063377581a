"""Coroutines in tests that are none themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


def run_async(work: Callable[[], Awaitable[Any]]) -> Any:
    """What `work` comes to, within 20 seconds."""

    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work()

    return asyncio.run(bounded())
