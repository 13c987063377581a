"""What was found out not long ago, and is not asked for again while it holds."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_FEW: Final = 100
"""So many answers are kept whether they hold or not."""


class Known:
    """Answers, each until it no longer holds."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, ...], tuple[float, Any]] = {}
        """Each with the time until which it holds."""
        self._many = _FEW

    async def lately(self, what: tuple[str, ...], seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """What was found out less than `seconds` ago, else what is so now."""
        now = time.monotonic()
        until, found = self.answers.get(what, (-math.inf, None))
        if until < now:
            found = await ask()
            if len(self.answers) >= self._many:  # of thousands of runs, not with each of them
                self.answers = {key: known for key, known in self.answers.items() if known[0] >= now}
                self._many = max(_FEW, 2 * len(self.answers))
            self.answers[what] = now + seconds, found
        return cast(T, found)
