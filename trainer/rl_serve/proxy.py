"""What stands in Ray Serve's proxies before everything else: a dead replica is no plain 500, and no client stays for ever.

A request of which nothing was answered yet is given to another replica; where a stream has begun, its last event says what
happened. On a cluster the environment of the proxies names `middlewares`, or `middlewares_with_prefixes` where the engine
keeps what it has computed for prompts (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`). Pure ASGI: no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_serve.answers import dumps, failure
from rl_serve.errors import ApiError
from rl_serve.prefixes import MOST_BYTES, key_of

logger = logging.getLogger(__name__)

TRIES: Final = 3
CONNECTION_SECONDS: Final = 20.0
_MOST_CONNECTIONS: Final = 10_000
# More than any request may have; one that is longer is not kept for another try.
_MOST_BYTES: Final = 9 * 2**20
# What Ray Serve calls a session is a prompt's beginning here; it reads either name.
_SESSION: Final = (b"x-session-id", b"x_session_id")
# Who sends a prompt more slowly than this is led to any replica.
_BODY_SECONDS: Final = 1.0
# Of Ray Serve's own answers, which are plain text: what they mean to a client.
_MEANING: Final = {
    404: ("not_found", "there is no application at this address yet; try again later"),
    408: ("deadline_exceeded", "the answer was not ready in time"),
    503: ("unavailable", "no replica is there; try again later"),
}


def middlewares() -> list[Middleware]:
    """For Ray Serve."""
    return [Middleware(Guard), Middleware(Renewal)]


def middlewares_with_prefixes() -> list[Middleware]:
    """For Ray Serve, with `rl_serve.routing.PrefixRouter`."""
    return [*middlewares(), Middleware(Prefixes)]


class Prefixes:
    """ASGI middleware: says how a prompt begins, so that its replica can be chosen by that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].startswith("/-/"):
            await self._app(scope, receive, send)
            return
        request = _Request(receive)
        body = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _body(request.again())
        key = None if body is None else key_of(body)
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in _SESSION]
        if key is not None:
            headers.append((_SESSION[0], key.encode()))
        await self._app({**scope, "headers": headers}, request.again(), send)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None: it is longer than prompts are looked at, or the client has gone."""
    body = bytearray()
    while len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)
    return None


class Renewal:
    """ASGI middleware: a connection ends with the first answer that begins `seconds` after its first request.

    A client that comes again is led to the pods that are there by then. With its connection it would stay at a Ray cluster
    that has lost the traffic, and lose what it asks there when that goes.
    """

    def __init__(
        self, app: ASGIApp, seconds: float = CONNECTION_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app, self._seconds, self._clock = app, seconds, clock
        self._since: dict[tuple[str, int], float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, on a connection that may be old."""
        client = scope.get("client")
        if scope["type"] != "http" or client is None or not self._is_old(tuple(client)):
            await self._app(scope, receive, send)
            return

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, last)

    def _is_old(self, client: tuple[str, int]) -> bool:
        now = self._clock()
        since = self._since.setdefault(client, now)
        if now - since <= self._seconds:
            # Of clients that went by themselves: the first ones are the oldest, and each is looked at once.
            while len(self._since) > _MOST_CONNECTIONS:
                oldest = next(iter(self._since))
                if now - self._since[oldest] <= self._seconds:
                    break
                del self._since[oldest]
            return False
        del self._since[client]
        return True


class Guard:
    """ASGI middleware around a proxy's application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, also where its replica dies."""
        if scope["type"] != "http" or scope["path"].startswith("/-/"):
            await self._app(scope, receive, send)
            return
        request = _Request(receive)
        for _ in range(TRIES):
            response = _Response(send)
            try:
                await self._app(scope, request.again(), response)
            except Exception:
                logger.exception("the proxy has failed")
            if response.ended or request.gone:
                return
            if response.sent:
                await response.cut(_died("the rest of this answer is lost"))
                return
            if not request.whole:
                break
        await _refuse(send, _died("there is no answer"))


class _Request:
    """The request's messages, kept so that they can be read more than once: another replica can be given them as well."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._size = 0
        self.gone, self.whole = False, True

    def again(self) -> Receive:
        """From the first message on."""
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position < len(self._kept):
                position += 1
                return self._kept[position - 1]
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return message
            self._size += len(message.get("body", b""))
            if self._size > _MOST_BYTES:
                self.whole = False
                self._kept = []
                position = 0
            else:
                self._kept.append(message)
                position += 1
            return message

        return receive


class _Response:
    """What was sent to the client. The head waits for the first piece of the body: before it another try is possible."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._streams = False
        self.sent = self.ended = False

    async def __call__(self, message: Message) -> None:
        """One message of the application's."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None or self.ended:
            return
        if not self.sent:
            headers = Headers(raw=self._start["headers"])
            kind = headers.get("content-type", "")
            if self._start["status"] in _MEANING and "json" not in kind and "x-model-error" not in headers:
                self.ended = True
                await _refuse(self._send, _meant(self._start["status"]))
                return
            self._streams = kind.startswith("text/event-stream")
            self.sent = True
            await self._send(self._start)
        self.ended = not message.get("more_body", False)
        await self._send(message)

    async def cut(self, error: ApiError) -> None:
        """End it with an error: in a stream as its last event; what has a length is cut off, which a client sees."""
        if not self._streams:
            raise RuntimeError(error.message)
        await self._send({"type": "http.response.body", "body": failure(error), "more_body": False})


def _died(what: str) -> ApiError:
    return ApiError(
        f"the replica that was answering has died: {what}; try again",
        status=503,
        code="replica_died",
        retry_after=1,
    )


def _meant(status: int) -> ApiError:
    code, sentence = _MEANING[status]
    return ApiError(sentence, status=status, code=code, retry_after=1 if status == 503 else None)


async def _refuse(send: Send, error: ApiError) -> None:
    body = dumps(error.body())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
