"""Processes of the lane: `Child` starts a function of one of its modules and waits for the answer with a deadline.

In the process: python -m gpu_lane.child MODULE FUNCTION REQUEST.json ANSWER.json
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpu_lane.job import Findings, Job, Skipped

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
PACKAGES = tuple(ROOT / name for name in ("api", "cli", "trainer", "bench"))
# Between asking a process to end and ending it.
GRACE = 10.0
_PROGRESS, _PARENT = "GPU_LANE_PROGRESS", "GPU_LANE_PARENT"
_PR_SET_PDEATHSIG = 1


class ChildFailed(RuntimeError):
    """A process of the lane failed or was not in time; the message is one sentence."""


class Child:
    """One process; use it as a context manager, which ends it and all that it has started."""

    def __init__(
        self,
        python: str,
        function: str,
        request: Mapping[str, Any],
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Starts `function` (MODULE.NAME of this package) with the keyword arguments `request`.

        `log`: file for what it prints; None: where this process prints. `progress`: told its lines of progress; such a
        process leads a group of its own, the others belong to that of the process that starts them.
        """
        self.name = function
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-lane-")
        asked, self._answer = (Path(self._folder.name) / name for name in ("request.json", "answer.json"))
        asked.write_text(json.dumps(dict(request)))
        self._leads = progress is not None
        settings = {
            **os.environ,
            _PARENT: str(os.getpid()),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(
                [*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **(env or {}),
        }
        settings.pop("RAY_ADDRESS", None)  # a cluster of somebody else's is not this machine
        reader = writer = None
        if progress is not None:
            reader, writer = os.pipe()
            settings[_PROGRESS] = str(writer)
        module, _, name = function.rpartition(".")
        with contextlib.ExitStack() as stack:
            output = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [python, "-m", "gpu_lane.child", module, name, str(asked), str(self._answer)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=settings,
                start_new_session=self._leads,
                # A process that this one starts says its progress to the same reader.
                pass_fds=[int(settings[_PROGRESS])] if _PROGRESS in settings else [],
            )
        if reader is not None and writer is not None and progress is not None:
            os.close(writer)
            threading.Thread(target=_tell, args=(reader, progress), daemon=True).start()

    def answer(self, deadline: float) -> Any:
        """What the function returned.

        Raises:
            ChildFailed: it raised, ended without an answer, or had none within `deadline` seconds.
            Skipped: it raised that.
        """
        try:
            status = self._process.wait(max(0.0, deadline))
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.name} had no answer within {deadline:.0f} s") from None
        if not self._answer.exists():
            raise ChildFailed(f"{self.name} ended with status {status} and no answer")
        found = json.loads(self._answer.read_text())
        if "skipped" in found:
            raise Skipped(found["skipped"])
        if "failed" in found:
            raise ChildFailed(found["failed"])
        return found["found"]

    @property
    def ended(self) -> bool:
        """Whether the process is over."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Ends the process, and with one that leads a group all of that."""
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            with contextlib.suppress(ProcessLookupError):
                if self._leads:
                    os.killpg(self._process.pid, number)
                elif self._process.poll() is None:
                    self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._folder.cleanup()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call(
    python: str,
    function: str,
    request: Mapping[str, Any],
    deadline: float,
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """The answer of a `Child`, which has ended then; for arguments and errors see there."""
    with Child(python, function, request, log=log, env=env, progress=progress) as child:
        return child.answer(deadline)


def all_answers(children: list[Child], deadline: float) -> list[Any]:
    """The answers of processes that work together: when one has failed, the others are not waited for."""
    end = time.monotonic() + deadline
    while time.monotonic() < end and not all(child.ended for child in children):
        for child in children:
            if child.ended:
                child.answer(0.0)  # raises where it has failed
        time.sleep(0.05)
    return [child.answer(end - time.monotonic()) for child in children]


def measure(stage: str, job: dict[str, Any]) -> dict[str, Any]:
    """What a stage finds, in the process of its own that the lane has started for it."""
    found: Findings = importlib.import_module(f"gpu_lane.{stage}").measure(Job(**job))
    return found.plain()


def progress(text: str) -> None:
    """Says in a process of the lane what it does now; nothing where nobody listens."""
    if _PROGRESS in os.environ:
        with contextlib.suppress(OSError):
            os.write(int(os.environ[_PROGRESS]), f"{text}\n".encode())


def sentence(error: BaseException) -> str:
    """An error in one line: our own sentences as they are, others with their kind before them."""
    lines = str(error).strip().splitlines()
    text = lines[0].rstrip(".") if lines else ""
    ours = any(
        kind.__name__ in ("RLTrainError", "ChildFailed", "PeerError", "Skipped")
        for kind in type(error).__mro__
    )
    return text if ours else f"{type(error).__name__}: {text}".rstrip(": ")


def _tell(reader: int, progress: Callable[[str], None]) -> None:
    with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            progress(line.rstrip())


def end_with(parent: int) -> None:
    """From now on this process is told to end (SIGTERM) when its `parent` has ended, however that was."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    module, name, asked, target = sys.argv[1:]
    try:
        # What it has started ends before it does.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        end_with(int(os.environ[_PARENT]))
        function = getattr(importlib.import_module(f"gpu_lane.{module}"), name)
        found: dict[str, Any] = {"found": function(**json.loads(Path(asked).read_text()))}
    except Skipped as why:
        found = {"skipped": str(why)}
    except BaseException as error:
        traceback.print_exc()
        found = {"failed": sentence(error)}
    written = Path(f"{target}.tmp")
    written.write_text(json.dumps(found))
    written.replace(target)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not the interpreter's own end: CUDA contexts and threads of engines may hold it up, and the answer is there.
    os._exit("failed" in found)


if __name__ == "__main__":
    main()
