"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path
from typing import Final

# Below Linux's ephemeral ports, so that no connection and no bind(0) takes one before its server does, and above
# those of Ray's workers (10002 to 19999).
PORTS: Final = range(20_000, 30_000)

_held: Final[dict[int, int]] = {}  # the file that is locked, by port


def free_ports(count: int) -> list[int]:
    """As many ports that nobody listens at, all different; no other test process is given one before this one ends."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if port not in _held and _take(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} of the ports {PORTS[0]} to {PORTS[-1]} are free")


def _take(port: int) -> bool:
    # Not in TMPDIR: a bench that a test starts may have another one, and takes ports as well.
    folder = Path(f"/tmp/rltrain-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        os.close(lock)
        return False
    _held[port] = lock
    return True
