"""`rltrain serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import requests
from training_runs import until

SECONDS = 240.0


class Server:
    """A process of `rltrain serve` and what it started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_cli.main", "serve", *arguments, "--port", "0"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, (self.lines, self._errors())
            return any(line.startswith("serving ") for line in self.lines)

        until(ready, SECONDS, lambda: f"the server is not ready: {self.lines}")
        self.url = self.lines[-1].partition(" at ")[2].partition("/v1")[0]
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Exit code and standard error; nothing that it started is left."""
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        _, left = psutil.wait_procs(self.children, timeout=200)
        assert [process.cmdline() for process in left] == []
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{self.url}/healthz", timeout=30)
        self._reader.join(30)
        return code, self._errors()

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for process in getattr(self, "children", []):
            with contextlib.suppress(psutil.NoSuchProcess):  # they end with it, each in its time
                process.kill()
        self.process.wait(30)
