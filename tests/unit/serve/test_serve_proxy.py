"""What a client sees where a replica dies: another try, or an end that says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from rl_serve.prefixes import MOST_BYTES, key_of
from rl_serve.proxy import TRIES, Guard, Prefixes, Renewal

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
Replica = Callable[[bytes, Send], Awaitable[None]]


def start(headers: list[tuple[bytes, bytes]] = JSON, status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def piece(body: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def dies(body: bytes, send: Send) -> None:
    """Before it has said anything: Ray Serve returns, and has sent nothing."""


async def dies_after_its_head(body: bytes, send: Send) -> None:
    await send(start())


async def answers(body: bytes, send: Send) -> None:
    await send(start())
    await send(piece(body.upper()))


async def streams_and_dies(body: bytes, send: Send) -> None:
    await send(start(EVENTS))
    await send(piece(b"data: 1\n\n", more=True))


async def writes_and_dies(body: bytes, send: Send) -> None:
    await send(start())
    await send(piece(b"{", more=True))


async def raises(body: bytes, send: Send) -> None:
    raise RuntimeError("of the proxy's own")


def ask(*replicas: Replica, body: tuple[bytes, ...] = (b"a", b"b"), leaves: bool = False) -> Any:
    """(messages to the client, replicas that were asked), of replicas that are asked one after the other."""
    sent: list[Message] = []
    asked = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        whole, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            whole, more = whole + message["body"], message["more_body"]
        await replicas[min(asked, len(replicas)) - 1](whole, send)

    pieces = [
        {"type": "http.request", "body": one, "more_body": number < len(body) - 1}
        for number, one in enumerate(body)
    ]

    async def receive() -> Message:
        return {"type": "http.disconnect"} if leaves or not pieces else pieces.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Guard(app)({"type": "http", "path": "/v1/completions"}, receive, send))
    return sent, asked


@pytest.mark.parametrize("dead", [dies, dies_after_its_head, raises])
def test_another_replica_answers_the_whole_request(dead: Replica) -> None:
    sent, asked = ask(dead, answers)
    assert (sent, asked) == ([start(), piece(b"AB")], 2)


def test_no_replica_answers() -> None:
    sent, asked = ask(dies)
    assert asked == TRIES
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    error = json.loads(sent[1]["body"])["error"]
    assert (error["type"], error["code"]) == ("server_error", "replica_died")


def test_a_stream_that_has_begun_ends_with_an_event() -> None:
    sent, asked = ask(streams_and_dies, answers)
    assert asked == 1
    assert [one["type"] for one in sent] == ["http.response.start"] + 2 * ["http.response.body"]
    assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "replica_died"
    assert not sent[-1]["more_body"]


def test_what_has_a_length_is_cut_off() -> None:
    with pytest.raises(RuntimeError, match="has died"):
        ask(writes_and_dies, answers)


def test_a_client_that_has_gone_is_answered_by_nobody() -> None:
    assert ask(answers, leaves=True) == ([], 1)


def test_a_request_that_is_too_long_to_keep_is_tried_once() -> None:
    sent, asked = ask(dies, answers, body=(b"x" * 5 * 2**20, b"x" * 5 * 2**20))
    assert (asked, sent[0]["status"]) == (1, 503)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (408, "deadline_exceeded"), (503, "unavailable")]
)
def test_plain_answers_of_the_proxy_get_openais_shape(status: int, code: str) -> None:
    async def plain(body: bytes, send: Send) -> None:
        await send(start([(b"content-type", b"text/plain")], status))
        await send(piece(b"words of Ray Serve's own"))

    sent, _ = ask(plain)
    assert sent[0]["status"] == status
    assert json.loads(sent[1]["body"])["error"]["code"] == code


def test_a_connection_ends_with_an_answer_when_it_is_old() -> None:
    now = 0.0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(piece(b"{}"))

    renewal = Renewal(app, 20.0, lambda: now)

    def closes(port: int) -> bool:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        asyncio.run(renewal({"type": "http", "path": "/", "client": ("10.0.0.1", port)}, receive, send))
        assert [one["type"] for one in sent] == ["http.response.start", "http.response.body"]
        return (b"connection", b"close") in sent[0]["headers"]

    assert not closes(1)
    now = 19.0
    assert not closes(1)
    assert not closes(2)
    now = 21.0
    assert closes(1)
    assert not closes(2)
    assert not closes(1)  # another connection of that port
    now = 45.0
    assert closes(2)


def test_connections_that_went_are_forgotten_and_none_is_looked_at_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_serve.proxy._MOST_CONNECTIONS", 100)
    now, looks = 0.0, 0

    class Known(dict[tuple[str, int], float]):
        def __iter__(self) -> Iterator[tuple[str, int]]:
            nonlocal looks
            looks += 1
            return super().__iter__()

        def items(self) -> Any:
            raise AssertionError("all of them are looked at")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    renewal = Renewal(app, 20.0, lambda: now)
    renewal._since = Known()
    for port in range(1000):
        now += 0.01
        assert not renewal._is_old(("10.0.0.1", port))
    assert len(renewal._since) == 1000, "all of them may still be there"
    now += 20.0
    looks = 0
    for port in range(1000, 3000):
        now += 0.0001
        assert not renewal._is_old(("10.0.0.1", port))
    assert len(renewal._since) == 2000
    assert looks <= 1000 + 2000
    now += 30.0
    assert not renewal._is_old(("10.0.0.2", 1))
    assert len(renewal._since) == 100


def led(*pieces: Message, path: str = "/v1/completions", pause: float = 0.0) -> tuple[Any, bytes]:
    """(sessions that Ray Serve is told, body that the replica reads) of a request whose client names one itself.

    `pause`: seconds before its last piece.
    """
    left = list(pieces)
    sessions: list[bytes] = []
    read = b""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal read
        sessions.extend(value for name, value in scope["headers"] if b"session" in name.lower())
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            read += message["body"]
            if not message["more_body"]:
                break

    async def receive() -> Message:
        if len(left) == 1:
            await asyncio.sleep(pause)
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"X-Session-Id", b"mine"), (b"x_session_id", b"mine"), (b"accept", b"*/*")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(Prefixes(app)(scope, receive, send))
    return sessions, read


def sent(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_how_a_prompt_begins_goes_on_as_its_session() -> None:
    body = json.dumps({"prompt": "2+2="}).encode()
    key = key_of(body)
    assert key is not None
    assert led(sent(body)) == ([key.encode()], body)
    assert led(sent(body[:5], more=True), sent(body[5:])) == ([key.encode()], body)


def test_what_has_no_beginning_has_no_session() -> None:
    assert led(sent(b"{}")) == ([], b"{}")
    long = json.dumps({"prompt": "x" * MOST_BYTES}).encode()
    half = len(long) // 2
    pieces = (sent(long[:half], more=True), sent(long[half:-5], more=True), sent(long[-5:]))
    assert led(*pieces) == ([], long)
    assert led(sent(b'{"prompt"', more=True)) == ([], b'{"prompt"')  # the client has gone


def test_the_operators_requests_are_as_they_were() -> None:
    assert led(sent(b"{}"), path="/-/rltrain/probe")[0] == [b"mine", b"mine"]


def test_a_client_that_is_slow_is_led_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_serve.proxy._BODY_SECONDS", 0.05)
    body = json.dumps({"prompt": "2+2="}).encode()
    assert led(sent(body[:5], more=True), sent(body[5:]), pause=0.2) == ([], body)
