"""Requests under way together: bounded in all and for each namespace. Whose turn it is says `rl_operator.model.turns`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rl_operator.model.turns import Turns


class Places:
    """So many places for requests."""

    def __init__(self, places: int) -> None:
        self._turns = Turns(places)
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncIterator[None]:
        """A place for a request of a namespace, once there is one for it."""
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(namespace, deque()).append(turn)
        self._turns.wait(namespace)
        self._serve()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # while it waited, so that it has no place
                self._turns.give_back(namespace)
                self._serve()

    def _serve(self) -> None:
        while (namespace := self._turns.take()) is not None:
            line = self._lines[namespace]
            turn = line.popleft()
            if not line:
                del self._lines[namespace]
                self._turns.leave(namespace)
            if turn.cancelled():
                self._turns.give_back(namespace)
            else:
                turn.set_result(None)
