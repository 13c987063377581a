"""Requests to a server over HTTP, many at once, from a thread that does not wait for them."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import aiohttp

from rl_api.errors import DeadlineExceeded
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.endpoint_requests import FIELD, refused


class ServerLost(Exception):
    """The server cannot be reached, breaks off, or is at its end: it may be back later."""


class EndpointClient:
    """A client of one server. Its requests are sent and awaited by a thread of its own."""

    def __init__(self, url: str, key: str | None, timeout: float) -> None:
        """`timeout`: seconds until each request must be answered."""
        self.url, self.timeout = url, timeout
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="endpoint").start()
        self._session = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        atexit.register(self.close)

    def close(self) -> None:
        """Close its connections, at which the server stops what it was asked. A second time: nothing."""
        asyncio.run_coroutine_threadsafe(self._session.close(), self._loop).result()
        atexit.unregister(self.close)

    async def _open(self) -> aiohttp.ClientSession:
        # As many connections as there are sequences: the server says what is at once.
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=min(self.timeout, 30.0)),
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to one request: JSON, or None where there is none.

        Raises:
            DeadlineExceeded: none came in time.
            EndpointError, InvalidConfig: the server refuses it.
            ServerLost: see there.
        """
        return asyncio.run_coroutine_threadsafe(self._ask(method, path, body), self._loop).result()

    def send(self, path: str, body: Any, done: Callable[[Any], None]) -> Future[None]:
        """POST a request, and return; `done` hears, in another thread, its answer or the error that `call` would raise.
        Whoever cancels the future closes the connection, at which the server stops."""

        async def ask() -> None:
            try:
                answer = await self._ask("POST", path, body)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                answer = error
            done(answer)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    async def _ask(self, method: str, path: str, body: Any) -> Any:
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                text = await response.text()
                status = response.status
        except aiohttp.ClientError as error:
            raise ServerLost(first_line(error)) from None
        except TimeoutError:
            raise DeadlineExceeded(
                f"server {self.url}: {path.partition('?')[0]} was not answered within {FIELD}.timeout "
                f"({self.timeout:.0f} s); look at the server's log, or set a longer one"
            ) from None
        if status >= 500:
            raise ServerLost(
                f"{path.partition('?')[0]} is answered with {status}: {' '.join(text.split())[:300]}"
            )
        if status >= 400:
            raise refused(self.url, path, status, text)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise ServerLost(
                f"{path.partition('?')[0]} is answered with {text[:60]!r}, which is no JSON"
            ) from None
