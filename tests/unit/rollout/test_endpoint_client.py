"""What gateways before a server answer, over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from rl_api.errors import DeadlineExceeded, EndpointError, InvalidConfig
from rl_trainer.rollout.engines import endpoint_client, endpoint_look
from rl_trainer.rollout.engines.endpoint_client import EndpointClient, ServerLost
from rl_trainer.rollout.engines.endpoint_look import wait_until_there

Answer = tuple[int, bytes, dict[str, str]]


class Gateway:
    """Gives its answers one after the other, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                gateway.asked.append(self.path)
                status, body, headers = (
                    gateway.answers.pop(0) if len(gateway.answers) > 1 else gateway.answers[0]
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE", 0.01)
    found = Gateway()
    yield found
    found.server.shutdown()
    found.server.server_close()


def ask(url: str, timeout: float = 30.0) -> object:
    client = EndpointClient(url, None, timeout)
    try:
        return client.call("POST", "/v1/completions", {})
    finally:
        client.close()


def test_too_early_is_asked_again(gateway: Gateway) -> None:
    gateway.answers = [(429, b"slow down", {}), (408, b"", {}), (200, b'{"a": 1}', {})]
    assert ask(gateway.url) == {"a": 1}
    assert len(gateway.asked) == 3


def test_too_early_for_ever_has_an_end(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten seconds pass with each answer: how many there are is no matter of how busy the machine is.
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(gateway.asked))
    monkeypatch.setattr(endpoint_client, "time", clock)
    gateway.answers = [(429, b"slow down", {})]
    with pytest.raises(
        DeadlineExceeded, match=r"answered with 429 until the end of spec.sampler.endpoint.timeout"
    ):
        ask(gateway.url)
    assert len(gateway.asked) == 3


def test_a_page_of_any_encoding(gateway: Gateway) -> None:
    gateway.answers = [(502, b"\xff\xfe schlecht", {"Content-Type": "text/html; charset=utf-8"})]
    with pytest.raises(ServerLost, match=r"answered with 502: .*schlecht") as found:
        ask(gateway.url)
    assert found.value.answered
    gateway.answers = [(400, b"\xe9", {})]
    with pytest.raises(EndpointError, match=r"refused \(400"):
        ask(gateway.url)


def test_a_redirect_is_not_followed(gateway: Gateway) -> None:
    gateway.answers = [(307, b"", {"Location": "/login"})]
    with pytest.raises(InvalidConfig, match=r"sends /v1/completions elsewhere \(307 to '/login'"):
        ask(gateway.url)
    assert gateway.asked == ["/v1/completions"]


def test_nobody_there_is_no_answer(gateway: Gateway) -> None:
    gateway.server.server_close()
    with pytest.raises(ServerLost) as found:
        ask(gateway.url)
    assert not found.value.answered


def test_nobody_lets_us_in_is_no_late_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a network policy, or a Service without pods, drops what is sent: it is not the server that is slow."""
    monkeypatch.setattr(endpoint_look, "LOOK_SECONDS", 0.01)
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for one in (first, second):  # its queue is full, and nobody takes them
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        client = EndpointClient(f"http://127.0.0.1:{listener.getsockname()[1]}", None, 1.6)
        try:
            with pytest.raises(
                DeadlineExceeded,
                match=r"not there within spec.sampler.endpoint.timeout .*Connection timeout to host",
            ):
                wait_until_there(client, time.monotonic() + client.timeout)
        finally:
            client.close()


@pytest.mark.parametrize("url", ["http://x:800000", "http://[", "http://:::"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"spec.sampler.endpoint.url: found '.*', which is no address"):
        ask(url)
