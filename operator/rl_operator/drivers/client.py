"""The HTTP client of the drivers' status servers. Every request has a deadline, every failure a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import aiohttp

from rl_api.progress import WISH_HEADER, CheckpointStatus, Progress, read_checkpoint, read_progress

_STATUS_SECONDS: Final = 3.0
_LARGEST: Final = 1 << 20
_MARGIN: Final = 5.0


class Calls(Protocol):
    """Hears of every request."""

    def driver_called(self, path: str, result: str) -> None:
        """A request was answered with a status, or failed (`error`)."""


class DriverError(Exception):
    """A driver does not answer, or answers nonsense; the message is a sentence."""


class DriverAbsent(DriverError):
    """Nobody listens where a driver would."""


class DriverRefused(DriverError):
    """A driver cannot do what was asked for, now or later."""


class Drivers:
    """All drivers of all runs."""

    def __init__(self, template: str, calls: Calls, at_once: int = 64) -> None:
        """Prepare; nothing is sent yet.

        Args:
            template: where a driver answers, with {service}, {namespace}, {port} and {run}.
            calls: hears of every request.
            at_once: most requests for progress under way together.
        """
        self._template, self._calls = template, calls
        self._places = asyncio.Semaphore(at_once)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def url(self, run: tuple[str, str], service: str, port: int) -> str:
        """Where the driver of a run answers."""
        return self._template.format(service=service, namespace=run[0], run=run[1], port=port)

    async def status(self, url: str, token: str) -> tuple[Progress, CheckpointStatus | None]:
        """Ask for progress and the newest checkpoint. A figure that is none counts as not said.

        Raises:
            DriverError: no usable answer came in time.
        """
        async with self._places:
            document = await self._request("GET", f"{url}/status", token, _STATUS_SECONDS)
        try:
            return read_progress(document), read_checkpoint(document.get("checkpoint"))
        except ValueError as error:
            raise DriverError(_clean(error)) from error

    async def checkpoint(self, url: str, token: str, wish: str, seconds: float) -> CheckpointStatus | None:
        """Ask for a checkpoint, and wait until it is written. A driver that has heard of this wish goes on with it.

        Args:
            url: where the driver answers.
            token: that it wants.
            wish: id of the wish. It travels as a header, which trainers that know nothing of it disregard.
            seconds: that it may take.

        Raises:
            DriverRefused: the run keeps no checkpoints.
            DriverAbsent: there is no driver now.
            DriverError: none was written in time.
        """
        body = {"timeoutSeconds": max(seconds, 1.0)}
        headers = {WISH_HEADER: wish}
        document = await self._request("POST", f"{url}/checkpoint", token, seconds + _MARGIN, body, headers)
        if document.get("id", wish) != wish:
            raise DriverError("its answer is to another request")
        return read_checkpoint(document.get("checkpoint"))

    async def _request(
        self,
        method: Literal["GET", "POST"],
        url: str,
        token: str,
        seconds: float,
        body: dict[str, Any] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256))
        result = "error"
        try:
            async with self._session.request(
                method,
                url,
                json=body,
                headers={"Authorization": f"Bearer {token}", **(more or {})},
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
            self._calls.driver_called(url.rpartition("/")[2], result)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise DriverError(f"its answer (status {status}) is no JSON object")
        if status == 409:
            raise DriverRefused(_clean(document.get("error", "it refuses")))
        if status != 200:
            raise DriverError(_clean(document.get("error", f"status {status}")))
        return document


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = b""
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _LARGEST:
            raise DriverError(f"its answer is longer than {_LARGEST} bytes")
    return data


def _clean(said: object) -> str:
    """What a driver says, as it can be stored in a status: of bounded length, and nothing that is no text."""
    return str(said)[:300].encode(errors="replace").decode()


def _sentence(error: Exception) -> str:
    """What went wrong, without addresses, which change with every pod."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its service has no address yet"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
    return f"the connection broke ({type(error).__name__})"
