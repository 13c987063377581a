"""Requests to a server over HTTP, many at once, from a thread that does not wait for them."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import aiohttp

from rl_api.errors import DeadlineExceeded, InvalidConfig
from rl_trainer.error_text import first_line
from rl_trainer.rollout.engines.endpoint_requests import FIELD, refused

LATER: Final = frozenset({408, 429})
"""Statuses with which gateways say that a request may be sent again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds until it is, doubled each time."""


class ServerLost(Exception):
    """The server cannot be reached, breaks off, or is at its end: it may be back later.

    Attributes:
        answered: there was an answer to this request; it says nothing of the others.
    """

    def __init__(self, sentence: str, answered: bool = False) -> None:
        super().__init__(sentence)
        self.answered = answered


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
        # Ahead of the whole answer's deadline: else one that cannot be reached is said to be late with its answer.
        connect = min(self.timeout / 2, 30.0)
        # As many connections as there are sequences: the server says what is at once.
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=connect),
        )

    def call(self, method: str, path: str, body: Any = None, within: float | None = None) -> Any:
        """The answer to one request: JSON, or None where there is none. `within`: seconds, fewer than usual.

        Raises:
            DeadlineExceeded: none came in time.
            EndpointError, InvalidConfig: the server refuses it.
            ServerLost: see there.
        """
        future = asyncio.run_coroutine_threadsafe(self._ask(method, path, body), self._loop)
        try:
            return future.result(within)
        except TimeoutError:
            future.cancel()
            raise DeadlineExceeded(f"server {self.url}: {path} was not answered within {within} s") from None

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
        """The answer; where one says that it is too early, that to the same request a little later."""
        name, deadline, pause = path.partition("?")[0], time.monotonic() + self.timeout, FIRST_PAUSE
        while True:
            status, text, location = await self._exchange(method, path, body)
            if status not in LATER:
                break
            if time.monotonic() + pause > deadline:
                raise DeadlineExceeded(
                    f"server {self.url}: {name} was answered with {status} until the end of {FIELD}.timeout "
                    f"({self.timeout:.0f} s); let it take more requests, or set a smaller sampler.maxSequences"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if status >= 500:
            raise ServerLost(
                f"{name} is answered with {status}: {' '.join(text.split())[:300]}", answered=True
            )
        if status >= 400:
            raise refused(self.url, path, status, text)
        if status >= 300:
            raise InvalidConfig(
                f"{FIELD}.url: found a server {self.url} that sends {name} elsewhere ({status} to {location!r}); give the "
                "address that answers itself"
            )
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise ServerLost(
                f"{name} is answered with {text[:60]!r}, which is no JSON", answered=True
            ) from None

    async def _exchange(self, method: str, path: str, body: Any) -> tuple[int, str, str]:
        """Status, text and redirection of one answer."""
        try:
            async with self._session.request(
                method, self.url + path, json=body, allow_redirects=False
            ) as response:
                # A gateway's page may be of any encoding.
                text = (await response.read()).decode("utf-8", errors="replace")
                return response.status, text, response.headers.get("Location", "")
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise InvalidConfig(
                f"{FIELD}.url: found {self.url!r}, which is no address ({first_line(error)}); give one such as "
                "http://inference:8000"
            ) from None
        except aiohttp.ClientError as error:
            raise ServerLost(first_line(error)) from None
        except TimeoutError:
            raise DeadlineExceeded(
                f"server {self.url}: {path.partition('?')[0]} was not answered within {FIELD}.timeout "
                f"({self.timeout:.0f} s); look at the server's log, or set a longer one"
            ) from None
