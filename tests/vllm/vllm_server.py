"""vLLM's own server for a model folder, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from rl_trainer.rollout.engines.vllm_arguments import WORKER_EXTENSION

ROOT = Path(__file__).parents[2]
SECONDS = 150.0
"""Deadline of a server's start, and of each request."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VllmServer:
    """A server as `docs/training.md` has it started, with what a CPU wants besides."""

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        """`options`: beside those that a run needs."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", WORKER_EXTENSION),
            *("--load-format", "safetensors", "--generation-config", "vllm", "--dtype", "float32"),
            *("--max-num-seqs", "128", "--enforce-eager", "--no-enable-chunked-prefill"),
            *options,
        ]
        self.start()

    def start(self) -> None:
        """Begin; whoever asks waits until it is there."""
        settings = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "trainer")),
        }
        # Those that engines of this process have set are not the server's.
        others = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, env={**others, **settings}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """End it and the processes that it has started, as a lost node does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
