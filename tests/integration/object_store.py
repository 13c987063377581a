"""A real S3 server (versitygw, on a folder) for the tests of what is kept in an object store."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

from ports import free_ports

SERVER = Path(__file__).parents[2] / ".tools" / "bin" / "versitygw"
_KEY, _SECRET = "rltrain", "open-sesame"
_START_SECONDS = 120.0


class ObjectStore:
    """Buckets below `folder`, served on a port of this machine from `start` to `stop`."""

    def __init__(self, folder: Path):
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve; returns when it answers."""
        assert SERVER.exists(), f"{SERVER} is not built; scripts/tools versitygw builds it"
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(SERVER), "--quiet", "--port", f"127.0.0.1:{self._port}", "posix", str(self._folder)]
        settings = {"ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
        self._process = subprocess.Popen(
            command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            assert self._process.poll() is None, "the object store did not start"
            assert time.monotonic() < deadline, f"the object store did not answer within {_START_SECONDS} s"
            time.sleep(0.05)

    def stop(self) -> None:
        """Serve no more; what is stored stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs: address and credentials."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # a server that is gone is asked once, not for eight seconds
            "NO_PROXY": "127.0.0.1",
        }

    def bucket(self, name: str) -> Path:
        """Make a bucket; its objects are files below the folder that is returned."""
        path = self._folder / name
        path.mkdir()
        return path
