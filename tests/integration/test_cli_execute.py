"""Commands in a pod, against a server that speaks what an API server does: WebSocket frames with channels."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
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

    def accept(self, protocol: str = "v4.channel.k8s.io") -> None:
        key = self._headers["sec-websocket-key"].encode()
        proof = base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()
        self._connection.sendall(
            (
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {proof}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
            ).encode()
        )

    def refuse(self, status: int, message: str) -> None:
        body = json.dumps({"kind": "Status", "message": message, "code": status})
        self._connection.sendall(
            f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def say(self, channel: int, data: bytes) -> None:
        self._connection.sendall(frame(2, bytes([channel]) + data))

    def hear(self) -> tuple[int, bytes]:
        """Channel and data of the next frame; a client masks what it sends."""
        head = self._take(2)
        size = head[1] & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
        mask, data = self._take(4), self._take(size)
        data = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        return data[0], data[1:]

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._connection.recv(count - len(data))
            assert piece, "the client has left"
            data += piece
        return data

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


def ended_with(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()


def run(cluster: Cluster, idle: float | None = 20.0) -> bytes:
    return b"".join(execute(cluster, "team-a", "head", ["cat", "a file"], idle=idle))


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
        asked.end(ended_with(1))

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
        over.wait(240)

    began = time.monotonic()
    with pod(script) as (cluster, _):
        with pytest.raises(ClusterError, match="pod head has said nothing for 1 s: cat a file"):
            run(cluster, idle=1.0)
        over.set()
    assert time.monotonic() - began < 120


def test_who_may_not_is_told_so() -> None:
    def script(asked: Pod) -> None:
        asked.refuse(403, 'pods "head" is forbidden: User "u" cannot create resource "pods/exec"')

    with (
        pod(script) as (cluster, _),
        pytest.raises(ClusterError, match='not allowed: pods "head" is forbidden'),
    ):
        run(cluster)


ATTACH = """
import sys
from kubernetes import client
from rl_cli.attach import attach
from rl_cli.cluster import Cluster
from rl_cli.failures import ClusterError
cluster = Cluster(client.ApiClient(client.Configuration(host=sys.argv[1])), "team-a")
try:
    sys.exit(attach(cluster, "team-a", "head", ["python", "-"]))
except ClusterError as error:
    sys.exit(f"said: {error}")
"""


def attached(cluster: Cluster, **streams: Any) -> subprocess.Popen[bytes]:
    """`attach` in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", ATTACH, cluster.host], **streams)


def test_input_is_sent_to_its_end_and_output_and_exit_code_come_back() -> None:
    program = b"print(1)\n" * 2000
    heard = []

    def script(asked: Pod) -> None:
        asked.accept("v5.channel.k8s.io")
        while True:
            channel, data = asked.hear()
            if (channel, data) == (255, b"\0"):  # input is closed
                break
            assert channel == 0
            heard.append(data)
        asked.say(1, b"one\n")
        asked.say(2, b"two\n")
        asked.say(1, b"three\n")
        asked.end(ended_with(7))

    with pod(script) as (cluster, paths):
        pipe = subprocess.PIPE
        client = attached(cluster, stdin=pipe, stdout=pipe, stderr=pipe)
        output, errors = client.communicate(program, 240)
    assert b"".join(heard) == program
    assert (client.returncode, output, errors) == (7, b"one\nthree\n", b"two\n")
    assert "stdin=true&stdout=true&tty=false" in paths[0]


def test_a_terminal_stays_one() -> None:
    def script(asked: Pod) -> None:
        asked.accept("v5.channel.k8s.io")
        assert asked.hear() == (4, b'{"Width":100,"Height":30}')
        asked.say(1, b"$ ")
        typed = b""
        while not typed.endswith(b"\r"):
            channel, data = asked.hear()
            assert channel == 0
            typed += data
        asked.say(1, b"you typed " + repr(typed).encode())
        asked.end(SUCCESS)

    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(terminal)
    os.write(keyboard, b"early ")  # before the command is there
    try:
        with pod(script) as (cluster, paths):
            client = attached(cluster, stdin=terminal, stdout=terminal, stderr=terminal)
            shown = b""
            while not shown.endswith(b"$ "):
                shown += os.read(keyboard, 1000)
            os.write(keyboard, b"ls \x03\r")  # Ctrl-C belongs to the command
            assert client.wait(240) == 0
            shown += os.read(keyboard, 1000)
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert shown == b"early $ you typed b'early ls \\x03\\r'"
    assert "stdin=true&stdout=true&tty=true" in paths[0]


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ("v5.channel.k8s.io", b"said: pod head: the connection ended before the command did"),
        ("v4.channel.k8s.io", b"said: this API server has no way to tell pod head where standard input ends"),
    ],
)
def test_an_end_that_is_none_is_said(protocol: str, sentence: bytes) -> None:
    def script(asked: Pod) -> None:
        asked.accept(protocol)
        asked.hear()

    with pod(script) as (cluster, _):
        pipe = subprocess.PIPE
        client = attached(cluster, stdin=pipe, stdout=pipe, stderr=pipe)
        _, errors = client.communicate(b"print(1)", 240)
    assert client.returncode == 1
    assert errors.startswith(sentence) or b"said: the connection to pod head broke" in errors
