"""A server with OpenAI's interface in a process group of its own, for the benchmarks of serving."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType

import psutil
from peers import LOGS, PeerError


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OpenAiServer:
    """`command` until it answers /v1/models at `port`; a context manager, at whose end all it started is gone.

    Raises:
        PeerError: it ended, or does not answer in time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 600.0,
    ) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._log = LOGS / f"{name}.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**clean, "HF_HUB_OFFLINE": "1", **(env or {})},
                start_new_session=True,
            )
        try:
            self._wait(start_timeout)
        except BaseException:
            self.close()
            raise

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise PeerError(f"{self.name}: the server ended while it was awaited; see {self._log}")
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise PeerError(f"{self.name}: no answer after {timeout:.0f} s; see {self._log}")

    def processes(self) -> list[psutil.Process]:
        """It and all below it."""
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def memory(self) -> int:
        """Bytes that its processes hold: unique ones, so that shared pages are not counted twice."""
        total = 0
        for process in self.processes():
            try:
                total += process.memory_full_info().uss
            except psutil.Error:  # it has just ended
                continue
        return total

    def close(self) -> None:
        """End it."""
        left = self.processes()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        _, left = psutil.wait_procs(left, timeout=10)
        for process in left:
            process.kill()

    def __enter__(self) -> OpenAiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
