"""The HTTP client of the drivers' status servers. Every request has a deadline, every failure a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from rl_api.paths import too_deep
from rl_api.printable import printable
from rl_api.progress import WISH_HEADER, CheckpointStatus, Progress, read_checkpoint, read_progress
from rl_operator.model.names import Key

_STATUS_SECONDS: Final = 3.0
_LARGEST: Final = 1 << 16
"""Bytes of an answer; a driver's own takes one thousand."""
_DEEPEST: Final = 8
_LONGEST: Final = 300
_MARGIN: Final = 5.0
_UNKNOWN: Final = (
    "it does not take the operator's token: the Secret of the attempt is not what the operator made, or the operator has "
    "another key than when the attempt began"
)


class DriverError(Exception):
    """A driver does not answer, or answers nonsense; the message is a sentence."""


class DriverAbsent(DriverError):
    """Nobody listens where a driver would."""


class DriverRefused(DriverError):
    """A driver cannot do what was asked for, now or later."""


class Drivers:
    """All drivers of all runs."""

    def __init__(self, template: str, called: Callable[[str, str], None]) -> None:
        """Prepare; nothing is sent yet.

        Args:
            template: where a driver answers, with {address}, {namespace}, {port} and {run}.
            called: hears of every request: the end of its path, and the answer's status or `error`.
        """
        self._template, self._called = template, called
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def url(self, run: Key, address: str, port: int) -> str:
        """Where the driver of a run answers."""
        host = f"[{address}]" if ":" in address else address
        return self._template.format(address=host, namespace=run[0], run=run[1], port=port)

    async def status(self, url: str, token: str) -> tuple[Progress, CheckpointStatus | None]:
        """Ask for progress and the newest checkpoint. A figure that is none counts as not said.

        Raises:
            DriverError: no usable answer came in time.
        """
        document = await self.request(f"{url}/status", token, _STATUS_SECONDS)
        try:
            return read_progress(document), read_checkpoint(document.get("checkpoint"))
        except ValueError as error:
            raise DriverError(printable(error, _LONGEST)) from error

    async def checkpoint(self, url: str, token: str, wish: str, seconds: float) -> CheckpointStatus | None:
        """Ask for a checkpoint, and wait some seconds until it is written. A driver that has heard of this wish goes on.

        The wish's id travels as a header, which trainers that know nothing of it disregard.

        Raises:
            DriverRefused: the run keeps no checkpoints.
            DriverAbsent: there is no driver now.
            DriverError: none was written in time.
        """
        body = {"timeoutSeconds": max(seconds, 1.0)}
        headers = {WISH_HEADER: wish}
        document = await self.request(f"{url}/checkpoint", token, seconds + _MARGIN, body, headers)
        if document.get("id", wish) != wish:
            raise DriverError("its answer is to another request")
        return read_checkpoint(document.get("checkpoint"))

    async def request(
        self,
        url: str,
        token: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """GET, or with a body POST; the JSON object of the answer.

        Raises:
            DriverError: no usable answer came in time, or it is an error.
        """
        if self._session is None:
            # How many are open together is the business of those who ask (`drivers.places`): here all would be in one line.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),  # one driver's cookies are nobody else's
                auto_decompress=False,
                trust_env=False,
            )
        result = "error"
        try:
            async with self._session.request(
                "GET" if body is None else "POST",
                url,
                json=body,
                # What is packed may unpack to anything.
                headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity", **(more or {})},
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                data = await _read(response)
                result = str(response.status)
                status = response.status
        except TimeoutError as error:
            raise DriverError(f"no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            absent = isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                error.os_error, ConnectionRefusedError
            )
            raise (DriverAbsent if absent else DriverError)(_sentence(error)) from error
        finally:
            self._called(url.rpartition("/")[2], result)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or too_deep(document, _DEEPEST):
            raise DriverError(f"its answer (status {status}) is no JSON object that can be read")
        if status == 401:
            raise DriverError(_UNKNOWN)
        if status == 409:
            raise DriverRefused(printable(document.get("error", "it refuses"), _LONGEST))
        if status not in (200, 202):
            said = document.get("error", f"status {status}")
            # A service's control says it as OpenAI does.
            words = said.get("message") if isinstance(said, dict) else said
            raise DriverError(printable(words, _LONGEST))
        return document


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = b""
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _LARGEST:
            raise DriverError(f"its answer is longer than {_LARGEST} bytes")
    return data


def _sentence(error: Exception) -> str:
    """What went wrong, without addresses, which change with every pod."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
    return f"the connection broke ({type(error).__name__})"
