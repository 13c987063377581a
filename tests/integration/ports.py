"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """As many ports that nobody listens at, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
