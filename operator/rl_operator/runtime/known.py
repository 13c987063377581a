"""What was found out not long ago, and is not asked for again while it holds."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Known:
    """Answers, each until it no longer holds."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, ...], tuple[float, Any]] = {}
        """Each with the time until which it holds."""

    async def lately(self, what: tuple[str, ...], seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """What was found out less than `seconds` ago, else what is so now."""
        now = time.monotonic()
        until, found = self.answers.get(what, (-math.inf, None))
        if until < now:
            found = await ask()
            fresh = {key: known for key, known in self.answers.items() if known[0] >= now}
            self.answers = fresh | {what: (now + seconds, found)}
        return cast(T, found)
