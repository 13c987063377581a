"""`rltrain chat` against servers on a socket that say what a server may say."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl_api.errors import DeadlineExceeded, InvalidConfig, RLTrainError
from rl_cli.main import main
from rl_cli.openai_client import Piece, Server, pieces, refusal


def event(text: str, **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Model:
    """What a server answers, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.keys: list[str | None] = []
        self.answer = (200, event("4", policy_version="step-1") + DONE)
        self.models: Any = {"data": [{"id": "small", "policy_version": "step-1"}]}


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps(found.models).encode())

        def do_POST(self) -> None:
            found.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            found.keys.append(self.headers["authorization"])
            self._send(*found.answer)

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def chat(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`chat(lines, *options)`: exit code and what was written."""

    def talk(lines: bytes, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        code = main(["chat", model.url, *options])  # type: ignore[attr-defined]
        out, err = capsys.readouterr()
        return code, out, err

    return talk


def test_a_line_is_a_turn_and_the_chat_goes_on(model: Model, chat: Any) -> None:
    code, out, err = chat(b"2+2=\n\nand?\n/quit\nnever\n", "--system", "be short", "--temperature", "0")
    assert (code, out) == (0, "4\n4\n")
    assert err == "rltrain: small, policy step-1; /quit ends the chat\n"
    assert [len(one["messages"]) for one in model.asked] == [2, 4]
    assert [one["content"] for one in model.asked[1]["messages"]] == ["be short", "2+2=", "4", "and?"]
    assert (model.asked[0]["model"], model.asked[0]["temperature"], "max_tokens" in model.asked[0]) == (
        "small",
        0.0,
        False,
    )


def test_a_new_policy_is_said(model: Model, chat: Any) -> None:
    model.answer = (200, event("4", policy_version="step-2") + DONE)
    assert chat(b"2+2=")[2].endswith("rltrain: policy step-2\n")


def test_what_a_model_writes_does_nothing_to_the_terminal(model: Model, chat: Any) -> None:
    model.answer = (200, event("\x1b[31mred\x07\n\u202eb") + event("\x1b") + event("]0;title") + DONE)
    code, out, _ = chat(b"?\n")
    assert code == 0
    assert out.replace("\n", "").isprintable()
    assert "red" in out


def test_a_refusal_ends_a_pipe(model: Model, chat: Any) -> None:
    model.answer = (429, b'{"error": {"message": "the queue is full\\u001b[2J"}}')
    code, _, err = chat(b"?\nand?\n")
    assert code == 1
    assert "rltrain: the server refuses (429): the queue is full" in err
    assert "\x1b" not in err
    assert len(model.asked) == 1


def test_a_key_of_the_environment(model: Model, chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert chat(b"?\n", "--model", "other")[0] == 0
    assert model.keys == ["Bearer sk-1"]
    assert model.asked[0]["model"] == "other"


def test_a_server_without_models(model: Model, chat: Any) -> None:
    model.models = {"data": []}
    code, _, err = chat(b"?\n")
    assert (code, "the answer lists no model; give --model" in err) == (1, True)


def test_a_line_that_is_no_utf8(model: Model, chat: Any) -> None:
    assert chat(b"a\xff\r\n")[0] == 0
    assert model.asked[0]["messages"][0]["content"] == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([b"data: {\n"], "the server sent what is no event of a chat: data: {"),
        ([b"data: []\n"], "the server sent what is no event of a chat"),
        ([b'data: {"error": {"message": "late"}}\n'], "late"),
        ([b'data: {"error": 1}\n'], "the server has ended the answer with an error"),
        ([event("4")], "the answer broke off before its end; ask again"),
        ([], "the answer broke off before its end; ask again"),
    ],
)
def test_streams_that_are_none(lines: list[bytes], sentence: str) -> None:
    with pytest.raises(RLTrainError) as caught:
        list(pieces(lines))
    assert str(caught.value).startswith(sentence)


def test_streams_of_other_servers() -> None:
    lines = [
        b": ping\n",
        b"event: x\n",
        b'data: {"choices": []}\n',
        b'data:{"choices":[{"delta":{}}]}\r\n',
        DONE,
    ]
    assert list(pieces(lines)) == [Piece("", "")]


def test_refusals_in_other_shapes() -> None:
    assert refusal(500, b"<html>\x1b") == "the server refuses (500): <html>\N{REPLACEMENT CHARACTER}"
    assert refusal(500, b"") == "the server refuses (500): no reason given"
    assert refusal(400, b'{"error": "no"}') == "the server refuses (400): no"


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:99999", "http://a b", "http://x\n"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidConfig, match="URL: found"):
        Server(url, "", 1.0)


def test_addresses_with_and_without_the_version() -> None:
    bases = {Server(url, "", 1.0).base for url in ("x:8", "http://x:8/", "http://x:8/v1", "http://x:8/v1/")}
    assert bases == {"http://x:8/v1"}
    with pytest.raises(InvalidConfig, match="--timeout"):
        Server("x", "", 0.0)


def test_nobody_there_and_nobody_who_speaks() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RLTrainError, match="no server answers there"):
            Server(address, "", 5.0).first_model()
        silent.listen()
        with pytest.raises(DeadlineExceeded, match=r"no answer for 0\.2 seconds"):
            Server(address, "", 0.2).first_model()
