"""Commands in a pod, against a server that speaks what an API server does: WebSocket frames with channels."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client

from rl_cli.cluster import Cluster
from rl_cli.execute import CommandFailed, execute
from rl_cli.failures import ClusterError

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SUCCESS = json.dumps({"status": "Success"}).encode()


def frame(opcode: int, data: bytes) -> bytes:
    if len(data) < 126:
        return bytes([0x80 | opcode, len(data)]) + data
    return bytes([0x80 | opcode, 126]) + struct.pack("!H", len(data)) + data


class Pod:
    """What a pod says to one command, and what it was asked."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        first, *rest = request.decode().split("\r\n")
        self.path = first.split(" ")[1]
        self._headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}

    def accept(self) -> None:
        key = self._headers["sec-websocket-key"].encode()
        proof = base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()
        self._connection.sendall(
            (
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {proof}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
            ).encode()
        )

    def refuse(self, status: int, message: str) -> None:
        body = json.dumps({"kind": "Status", "message": message, "code": status})
        self._connection.sendall(
            f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def say(self, channel: int, data: bytes) -> None:
        self._connection.sendall(frame(2, bytes([channel]) + data))

    def end(self, status: bytes) -> None:
        self.say(3, status)
        self._connection.sendall(frame(8, struct.pack("!H", 1000)))


@contextmanager
def pod(script: Callable[[Pod], Any]) -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster whose only pod answers as `script` says; and the paths that were asked for."""
    paths: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked = Pod(connection)
                paths.append(urllib.parse.unquote(asked.path))
                script(asked)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        settings = client.Configuration(host=f"http://127.0.0.1:{server.getsockname()[1]}")
        yield Cluster(client.ApiClient(settings), "team-a"), paths
        thread.join(30)


def run(cluster: Cluster, idle: float | None = 20.0) -> bytes:
    return b"".join(execute(cluster, "team-a", "head", "ray", ["cat", "a file"], idle=idle))


def test_output_comes_as_it_was_written() -> None:
    page = "größer ▁█\n".encode() * 1000

    def script(asked: Pod) -> None:
        asked.accept()
        for start in range(0, len(page), 999):  # pieces that cut characters in two
            asked.say(1, page[start : start + 999])
        asked.end(SUCCESS)

    with pod(script) as (cluster, paths):
        assert run(cluster) == page
    assert paths == [
        "/api/v1/namespaces/team-a/pods/head/exec?command=cat&command=a file&container=ray"
        "&stderr=true&stdin=false&stdout=true&tty=false"
    ]


def test_a_command_that_fails_says_why() -> None:
    def script(asked: Pod) -> None:
        asked.accept()
        asked.say(2, b"cat: a file: No such file\n")
        causes = [{"reason": "ExitCode", "message": "1"}]
        asked.end(json.dumps({"status": "Failure", "details": {"causes": causes}}).encode())

    with (
        pod(script) as (cluster, _),
        pytest.raises(CommandFailed, match="cat: a file: No such file") as error,
    ):
        run(cluster)
    assert error.value.code == 1


def test_a_connection_that_ends_early_is_no_success() -> None:
    def script(asked: Pod) -> None:
        asked.accept()
        asked.say(1, b"half a page")

    with pod(script) as (cluster, _), pytest.raises(ClusterError):
        run(cluster)


def test_silence_has_a_deadline() -> None:
    over = threading.Event()

    def script(asked: Pod) -> None:
        asked.accept()
        over.wait(30)

    began = time.monotonic()
    with pod(script) as (cluster, _):
        with pytest.raises(ClusterError, match="pod head has said nothing for 1 s: cat a file"):
            run(cluster, idle=1.0)
        over.set()
    assert time.monotonic() - began < 15


def test_who_may_not_is_told_so() -> None:
    def script(asked: Pod) -> None:
        asked.refuse(403, 'pods "head" is forbidden: User "u" cannot create resource "pods/exec"')

    with (
        pod(script) as (cluster, _),
        pytest.raises(ClusterError, match='not allowed: pods "head" is forbidden'),
    ):
        run(cluster)
