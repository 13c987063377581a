"""What `task.isolation: strict` has in a pod, here: a server for code of the user's, of another user where that can be."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OTHER: dict[str, Any] = {"user": 1001, "group": 1001, "extra_groups": []}
_ENVIRONMENT = {
    "HOME": "/tmp",
    "PATH": os.environ["PATH"],
    "PYTHONPATH": ":".join([*filter(None, sys.path), sysconfig.get_path("purelib")]),
}


def _interpreter() -> str | None:
    """One that the other user may start: this one may be of a home that nobody else sees."""
    names = (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    for name in names if os.getuid() == 0 else ():
        try:
            subprocess.run(
                [name, "-c", "import pydantic"], env=_ENVIRONMENT, cwd="/tmp", check=True, **_OTHER
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return name
    return None


_INTERPRETER = _interpreter()
CODE_USER = os.getuid() if _INTERPRETER is None else _OTHER["user"]


@contextmanager
def code_container() -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The socket at which it listens, in a folder into which both users may write, and its process."""
    folder = Path(
        tempfile.mkdtemp(prefix="code-", dir="/tmp")
    )  # a short name, and none that is the own user's alone
    folder.chmod(0o777)
    try:
        with code_server(folder / "socket") as server:
            yield folder / "socket", server
    finally:
        shutil.rmtree(folder)


@contextmanager
def code_server(at: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which listens; it may be another one's that has listened there before."""
    command = [_INTERPRETER or sys.executable, "-m", "rl_trainer.tasks.code_server", str(at)]
    server = subprocess.Popen(command, env=_ENVIRONMENT, **(_OTHER if _INTERPRETER else {}))
    try:
        deadline = time.monotonic() + 60
        while not _listens(at):
            assert server.poll() is None, "it has ended"
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.02)
        yield server
    finally:
        server.kill()
        server.wait()


def _listens(at: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(at)) == 0
