"""A client of servers with OpenAI's interface: as much of it as a chat in the terminal needs, and nothing to install."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from rl_api.errors import DeadlineExceeded, InvalidConfig, RLTrainError
from rl_api.printable import printable

Message: TypeAlias = dict[str, str]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LONGEST = 500
# More than any answer has, and less than what fills a memory.
_MOST_BYTES = 16 * 2**20


class Piece(NamedTuple):
    """A piece of an answer, and the version of the policy that made it; empty: the server does not say."""

    text: str
    version: str


class Server:
    """A server.

    Args:
        url: its address, with or without /v1.
        key: API key, empty for none.
        timeout: longest silence, in seconds.

    Raises:
        InvalidConfig: `url` is no address, or `timeout` no number of seconds.
    """

    def __init__(self, url: str, key: str, timeout: float) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
            raise InvalidConfig(f"URL: found {printable(url, 200)}, allowed: such as http://127.0.0.1:8000")
        if not (math.isfinite(timeout) and timeout > 0):
            raise InvalidConfig(f"--timeout: found {timeout:g}, allowed: seconds above 0")
        path = parts.path.rstrip("/")
        self.base = f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        # This machine is not behind the proxy that the environment names.
        proxies = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
        self._opener = urllib.request.build_opener(*proxies)

    def first_model(self) -> tuple[str, str]:
        """Name and policy version (empty: not said) of the first model it lists.

        Raises:
            RLTrainError: it does not answer, or lists none.
        """
        with self._ask("models", None) as answer:
            try:
                found = json.loads(answer.read(_MOST_BYTES))["data"][0]
                return str(found["id"]), str(found.get("policy_version") or "")
            except (ValueError, LookupError, TypeError, AttributeError):
                raise RLTrainError(f"{self.base}/models: the answer lists no model; give --model") from None

    def stream(
        self, model: str, messages: list[Message], options: Mapping[str, int | float | None]
    ) -> Iterator[Piece]:
        """The answer to a chat, as it comes.

        Raises:
            RLTrainError: the server refuses, ends too early, or is no such server.
            DeadlineExceeded: it is silent for too long.
        """
        given = {name: value for name, value in options.items() if value is not None}
        body = {"model": model, "messages": messages, "stream": True, **given}
        with self._ask("chat/completions", body) as answer:
            try:
                yield from pieces(iter(lambda: answer.readline(_MOST_BYTES), b""))
            except TimeoutError:
                raise self._silent() from None
            except (OSError, http.client.HTTPException) as error:
                raise RLTrainError(
                    f"{self.base}: the answer broke off ({type(error).__name__}); ask again"
                ) from None

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}/{path}", data, self._headers)
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise RLTrainError(refusal(error.code, error.read(_MOST_BYTES))) from None
        except TimeoutError:
            raise self._silent() from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise self._silent() from None
            why = getattr(error, "reason", error)
            text = getattr(why, "strerror", None) or str(why) or type(why).__name__
            raise RLTrainError(
                f"{self.base}: no server answers there ({printable(text, 200)}); is it running, and is this its address?"
            ) from None

    def _silent(self) -> RLTrainError:
        return DeadlineExceeded(f"{self.base}: no answer for {self._timeout:g} seconds (--timeout)")


def pieces(lines: Iterable[bytes]) -> Iterator[Piece]:
    """The text in the lines of a stream of server-sent events.

    Raises:
        RLTrainError: an event says so, is none, or the stream ends before the answer does.
    """
    for line in lines:
        name, _, content = line.strip().partition(b":")
        if name != b"data":
            continue
        if content.strip() == b"[DONE]":
            return
        try:
            found = json.loads(content)
            if "error" in found:
                raise RLTrainError(_sentence(found) or "the server has ended the answer with an error")
            version = str(found.get("policy_version") or "")
            for choice in found["choices"]:
                yield Piece(str((choice.get("delta") or {}).get("content") or ""), version)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RLTrainError(
                f"the server sent what is no event of a chat: {printable(line[:80].decode('utf-8', 'replace'))}"
            ) from None
    raise RLTrainError("the answer broke off before its end; ask again")


def refusal(status: int, body: bytes) -> str:
    """What an answer with an error says."""
    try:
        said = _sentence(json.loads(body))
    except (ValueError, RecursionError):
        said = ""
    return f"the server refuses ({status}): {said or printable(body[:200].decode('utf-8', 'replace')) or 'no reason given'}"


def _sentence(found: Any) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return printable(said, _LONGEST) if isinstance(said, str) else ""
