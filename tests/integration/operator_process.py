"""The operator as a process that can be killed and started again, and what its metrics say. For tests and benchmarks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ports import free_ports

WRITES: Final = ("create", "patch", "update", "delete")
START_SECONDS: Final = 240.0


class Program:
    """A process that works with a cluster."""

    def __init__(self, command: Sequence[str], kubeconfig: Path, log: Path) -> None:
        self.command, self.kubeconfig, self.log = list(command), kubeconfig, log
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self._written_before = 0

    def start(self) -> None:
        """Start it; what it writes is added to the log."""
        self.started = time.monotonic()
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        with self.log.open("ab") as output:
            self._written_before = output.tell()
            self.process = subprocess.Popen(self.command, env=environment, stdout=output, stderr=output)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def goes_on(self) -> bool:
        """Whether it runs. Asked while something is waited for."""
        return self.running

    @property
    def said(self) -> str:
        """What it has written since it was started."""
        return self.log.read_bytes()[self._written_before :].decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a machine that dies would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> Any:
        """Wait for a condition; returns what it gave.

        Raises:
            AssertionError: the program has ended, or it took too long.
        """
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            said = self.log.read_text()[-3000:]
            assert self.goes_on(), f"{what}: the program has ended:\n{said}"
            assert time.monotonic() < deadline, f"{what}: not in time\n{said}"
            time.sleep(0.1)
        return found


class OperatorProcess(Program):
    """The operator."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str) -> None:
        super().__init__((), kubeconfig, log)
        self._options, self._port = options, 0

    def start(self) -> None:
        """Start it; it does not work at once."""
        (self._port,) = free_ports(1)
        listen = [f"--metrics-listen=127.0.0.1:{self._port}", "--health-listen=127.0.0.1:0"]
        if (
            "--leader-elect" not in self._options
        ):  # and has no namespace of its own, in which its key could be kept
            key = self.log.with_suffix(".key")
            key.write_bytes(b"the key of an operator in a test")
            listen.append(f"--key-file={key}")
        self.command = [sys.executable, "-m", "rl_operator", *self._options, *listen]
        super().start()

    def goes_on(self) -> bool:
        """Whether it runs. As the kubelet does, it starts one again that ended because the API server was too slow for its
        lease."""
        ended = self.process is not None and self.process.poll() == 1
        if ended and "could not be renewed for" in self.said:
            self.start()
        return self.running

    def until_works(self) -> None:
        """Wait until it is the one that works.

        Raises:
            AssertionError: it has ended, or takes too long.
        """
        self.until(lambda: self.metrics().get("rltrain_operator_leader") == 1, "the operator starts")

    @property
    def address(self) -> str:
        """Where its metrics are, as host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def page(self) -> str:
        """Its metrics as Prometheus reads them; empty while it does not answer."""
        return self._answer("/metrics")

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels; empty while it does not answer."""
        lines = (line for line in self.page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def calls(self) -> dict[tuple[str, str], int]:
        """Requests to the API server since it was started, by verb and kind."""
        found: dict[tuple[str, str], int] = {}
        for name, value in self.metrics().items():
            match = re.match(r"rltrain_operator_api_calls_total\{(.*)\}", name)
            if match:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
                key = labels["verb"], labels["kind"]
                found[key] = found.get(key, 0) + int(value)
        return found

    @property
    def writes(self) -> int:
        """Writes since it was started."""
        return sum(count for (verb, _), count in self.calls().items() if verb in WRITES)

    @property
    def looks(self) -> int:
        """Looks at runs since it was started."""
        return int(self.metrics().get("rltrain_operator_reconcile_seconds_count", 0))

    @property
    def alive(self) -> bool:
        """Whether its probe says so."""
        return self._answer("/healthz") == "ok\n"

    def _answer(self, path: str) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self._port}{path}", timeout=60) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""
