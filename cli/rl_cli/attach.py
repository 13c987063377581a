"""A command in a pod that is talked to: standard input goes there, output comes here, a terminal stays one."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rl_cli.execute import ERROR, STDERR, STDOUT, open_channels, outcome, socket_errors
from rl_cli.failures import ClusterError

_RESIZE: Final = 4
"""Channel that takes the size of the terminal."""

_PIECE: Final = 4096
"""Bytes of input sent at once: fewer than fit into a socket that takes any, so that sending never waits."""

_LOOK_MILLISECONDS: Final = 1000
_PING_SECONDS: Final = 20.0
_DEAD_SECONDS: Final = 60.0
"""How long the other side may not acknowledge what was sent: a connection that died in silence ends so."""


def attach(cluster: Any, namespace: str, pod: str, command: Sequence[str]) -> int:
    """Run a command (no shell unless it is one) with this process's standard streams; returns its exit code.

    With a terminal on both sides of this process the command gets one, too, of the same size. Otherwise standard input
    is sent up to its end, unless it is a terminal. `cluster` is a rl_cli.cluster.Cluster.

    Raises:
        ClusterError: the command could not be started, or the connection broke.
    """
    terminal = has_terminal()
    source = sys.stdin.fileno() if terminal or not sys.stdin.isatty() else None
    channels = open_channels(cluster, namespace, pod, command, stdin=source is not None, tty=terminal)
    try:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a connection that dies in silence hangs
            channels.sock.sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_DEAD_SECONDS * 1000)
            )
        if not terminal:
            return _exchange(channels, source, pod, None)
        with _raw(sys.stdin.fileno()):
            return _exchange(channels, source, pod, sys.stdout.fileno())
    except (OSError, socket_errors()) as error:
        raise ClusterError(f"the connection to pod {pod} broke: {error}") from error
    finally:
        channels.close()


def has_terminal() -> bool:
    """Whether a person types and reads."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _exchange(channels: Any, source: int | None, pod: str, terminal: int | None) -> int:
    """Carry input and output until the command ends; its exit code."""
    result, waiting, sent, pinged = b"", b"", False, time.monotonic()
    size: os.terminal_size | None = None
    line = channels.sock.sock
    while channels.is_open():
        if terminal is not None and (now := os.get_terminal_size(terminal)) != size:
            size = now
            channels.write_channel(_RESIZE, f'{{"Width":{size.columns},"Height":{size.lines}}}'.encode())
        poll = select.poll()
        poll.register(line, select.POLLIN | (select.POLLOUT if waiting else 0))
        if source is not None and not waiting:
            poll.register(source, select.POLLIN)
        # What TLS has deciphered already shows at no socket.
        held = getattr(line, "pending", lambda: 0)()
        ready = dict(poll.poll(0 if held else _LOOK_MILLISECONDS))
        if waiting and ready.get(line.fileno(), 0) & select.POLLOUT:
            channels.write_stdin(waiting)
            waiting, sent = b"", True
        if source is not None and ready.get(source):
            waiting = os.read(source, _PIECE)
            if not waiting:
                source = None
                _end_input(channels, pod, sent)
        result += _show_all(channels)
        if channels.is_open() and time.monotonic() - pinged > _PING_SECONDS:
            channels.sock.ping()
            pinged = time.monotonic()
    result += _show_all(channels)
    code, message = outcome(result)
    if code < 0:
        raise ClusterError(f"pod {pod}: {message}")
    return code


def _show_all(channels: Any) -> bytes:
    """Show what has come; returns what was said of the command's end."""
    channels.update(timeout=0)
    for stream, channel in ((sys.stdout, STDOUT), (sys.stderr, STDERR)):
        if data := channels.read_channel(channel):
            stream.buffer.write(data)
            stream.buffer.flush()
    ended: bytes = channels.read_channel(ERROR)
    return ended


def _end_input(channels: Any, pod: str, sent: bool) -> None:
    if channels.subprotocol == "v5.channel.k8s.io":
        channels.close_channel(0)
    elif sent:
        raise ClusterError(
            f"this API server has no way to tell pod {pod} where standard input ends "
            f"({channels.subprotocol or 'no protocol'}): put into COMMAND what it is to read"
        )


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the other side, Ctrl-C too; the terminal is as it was afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSADRAIN)  # what was typed before the command began is kept
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
