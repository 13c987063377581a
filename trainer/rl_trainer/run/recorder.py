"""What people see of a run while it trains: metrics, timeline, console and status server, told step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rl_api import Progress
from rl_trainer.observe.console import Console
from rl_trainer.observe.metrics import MetricsWriter, StepRecord
from rl_trainer.observe.timeline import Span, TimelineWriter
from rl_trainer.run.status_server import StatusServer
from rl_trainer.storage.files import Closes


class Recorder(Closes):
    """The files and the displays of one attempt, open as a context manager."""

    def __init__(self, folder: Path, console: Console, server: StatusServer):
        self.console, self.server = console, server
        with ExitStack() as stack:
            self.metrics = stack.enter_context(MetricsWriter(folder))
            self.timeline = stack.enter_context(TimelineWriter(folder))
            self._files = stack.pop_all()
        self._step_ended = time.monotonic()
        self._alarms: set[str] = set()

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def start_clock(self) -> None:
        """The first step begins now."""
        self._step_ended = time.monotonic()

    def step_seconds(self) -> float:
        """Since the end of the step before, which this step ends."""
        before, self._step_ended = self._step_ended, time.monotonic()
        return self._step_ended - before

    def step(
        self, record: StepRecord, spans: Sequence[Span], alarms: Sequence[str], progress: Progress
    ) -> None:
        """One step has ended. `alarms`: what the buffer complains of, see `BufferState.metrics`."""
        self.metrics.write(record)
        self.timeline.write(spans)
        # Each is told once, and again when it comes back.
        current = {sentence.split(" for ")[0]: sentence for sentence in alarms}
        for name in current.keys() - self._alarms:
            self.console.warning(current[name])
            self.metrics.event("note", step=record.step, text=current[name])
        self._alarms = set(current)
        self.console.step(record, progress.eta_seconds)
        self.server.update(progress, record)
