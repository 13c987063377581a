"""Runs a training program of the user's, as `rltrain run` and the cluster run our own loop: folder, status, metrics, end."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rl_api import CheckpointStatus, RLTrainingRun
from rl_api.errors import CheckpointError
from rl_api.printable import printable
from rl_api.progress import LONGEST_URI, Progress
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.observe.console import Console
from rl_trainer.observe.metrics import METRICS_FILE, MetricsWriter, StepRecord, position_of_step
from rl_trainer.program.environment import checkpoint_place, program_environment
from rl_trainer.program.lines import BadLine, Event, Tail, parse_line
from rl_trainer.program.process import Program
from rl_trainer.program.verl import LOG_VARIABLE, verl_command
from rl_trainer.run.attempt import Attempt
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.stopping import StopRequest
from rl_trainer.storage.files import dump_json, read_json, write_atomic

CONFIG_FILE: Final = "run.json"
LINES_FILE: Final = "program.jsonl"
LOG_FILE: Final = "program.log"
STATE_FILE: Final = "program.json"
# Metrics first: the state names a position in them.
_KEPT_OUTSIDE: Final = (METRICS_FILE, STATE_FILE)
_POLL_SECONDS: Final = 0.2
# How often it is looked whether another process has taken over the folder, and the time used is written down.
_CARE_SECONDS: Final = 5.0
# Who asked for the checkpoint of a run that is to be suspended ends it then; nobody else does.
_END_SECONDS: Final = 60.0


def run_program(run: RLTrainingRun, folder: RunFolder, console: Console, stop: StopRequest) -> dict[str, Any]:
    """Runs `trainer.command`, or verl, to its end and returns the summary.

    Raises:
        Interrupted: a signal, or a checkpoint that was asked for, ended the program.
        ProgramFailed: it did not end with exit code 0.
        RLTrainError: anything else that ends the run.
    """
    with ProgramRun(run, folder, console, stop) as session:
        return session.to_its_end()


class ProgramRun(Attempt):
    """One attempt of a program: what it writes, and what is shown of it."""

    def __init__(self, run: RLTrainingRun, folder: RunFolder, console: Console, stop: StopRequest):
        super().__init__(run, folder, console)
        self.stop = stop
        self._place = checkpoint_place(self.spec, folder.path)
        self._asked = False
        self._reason: str | None = None  # why we stopped the program

    def _close(self, error: BaseException | None) -> None:
        self.program.close()
        self.folder.check_owner()  # or what is written here would be another process's
        if self._first:
            self._record_early()
        self._keep_state()

    def _open(self) -> None:
        spec, path = self.spec, self.folder.path
        if self.remote is not None and self.folder.resume:
            self.remote.bring(*_KEPT_OUTSIDE)
        state = read_json(path / STATE_FILE) if self.folder.resume else None
        earlier = state if isinstance(state, dict) else {}
        self._attempt = int(os.environ.get("RLTRAIN_ATTEMPT") or earlier.get("attempt", 0) + 1)
        self.counters.earlier_seconds = float(earlier.get("seconds", 0.0))
        self.counters.step = int(earlier.get("step", 0))
        self._serve(self._ask)
        self._show_reached()
        if kept := earlier.get("checkpoint"):  # of which, perhaps, nobody has read: there it goes on
            self._show_checkpoint(CheckpointStatus.model_validate(kept))
        self.metrics = self._stack.enter_context(MetricsWriter(path))
        lines = path / LINES_FILE
        if earlier:
            self._catch_up(lines, earlier)
            self._show_reached()
            self.counters.resumed_from = self.counters.step
            self.console.message(f"attempt {self._attempt}: an earlier one came to step {self.counters.step}")
        else:
            self.metrics.truncate(0)
        self.tail = Tail(lines)
        self._begin_lines(first=True)
        self._keep_state()  # first: killed between the two, the lines are taken once more, and none is lost
        lines.unlink(missing_ok=True)
        self.folder.write_run(self.run)
        write_atomic(path / CONFIG_FILE, json.dumps(self.run.to_document(), indent=2) + "\n")
        if "://" not in self._place:
            Path(self._place).mkdir(parents=True, exist_ok=True)
        limit = spec.stop.max_duration
        left = None if limit is None else limit.seconds - self.counters.earlier_seconds
        self._deadline = None if left is None else time.time() + max(0.0, left)
        environment = program_environment(
            os.environ,
            spec,
            name=self.run.name,
            folder=path,
            config=path / CONFIG_FILE,
            metrics=lines,
            attempt=self._attempt,
            resume=bool(earlier) or (self.remote is not None and self._attempt > 1),
            deadline=self._deadline,
        )
        if spec.trainer.kind == "verl":
            environment[LOG_VARIABLE] = str(lines)
        on_cluster = "RLTRAIN_ATTEMPT" in os.environ
        self.program = Program(
            self._command(),
            environment,
            None if on_cluster else self.folder.search,
            path / LOG_FILE,
        )
        self._stack.callback(self.program.close)
        self.console.message(f"status at {self.server.url}/status")
        self.counters.start_clock()
        self._step_ended = self._cared = time.monotonic()
        self._keep_state()
        self.show_phase("Training")
        self.console.phase("training")

    # -- the loop --------------------------------------------------------------------------------------------------

    def to_its_end(self) -> dict[str, Any]:
        """Follows the program until it has ended."""
        self.stop.begin(self.console.message)
        while self.program.running:
            self._say(self.program.lines(_POLL_SECONDS))
            self._read_progress()
            self._care()
            self._stop_if_due()
        self._say(self.program.drain())
        self._read_progress()
        if self._reason in ("signal", "checkpoint"):
            self._acknowledge()
            raise self.stop.interrupted(
                f"the program was stopped at step {self.counters.step} of {self.spec.stop.max_steps}; {RESUME_HINT}"
            )
        if self._reason is None:
            self.program.check()
        return self._finish(self._reason or "programEnded")

    def _stop_if_due(self) -> None:
        if self._reason is not None:
            return
        if self.stop.requested:
            self._reason = "signal"
        elif self._asked:
            self._reason = "checkpoint"
            self.console.message("a checkpoint is asked for: the program is told to stop (SIGTERM)")
        elif self._deadline is not None and time.time() >= self._deadline:
            self._reason = "maxDuration"
            self.console.message("stop.maxDuration is over: the program is told to stop (SIGTERM)")
        if self._reason is not None:
            self.show_phase("Stopping")
            self.program.stop(self.spec.scheduling.preemption_grace_period.seconds)

    def _acknowledge(self) -> None:
        """Answers who asked for a checkpoint, and lets them end this process."""
        if not self._asked:
            return
        if self._checkpoint is not None:
            self.server.checkpointed(self._checkpoint)
        else:
            self.server.checkpoint_failed(
                "the program has stopped, and told of no checkpoint: see docs/backends.md", final=True
            )
        self.show_phase("Stopping")
        deadline = time.monotonic() + _END_SECONDS
        while not self.stop.requested and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _finish(self, reason: str) -> dict[str, Any]:
        summary = self._summarize(reason)
        self.show_phase("Succeeded")
        self.console.finish(summary, self.folder.path / "report.html")
        return summary

    # -- parts -----------------------------------------------------------------------------------------------------

    def _command(self) -> tuple[str, ...]:
        if self.spec.trainer.kind == "command":
            return self.spec.trainer.command
        gpus = os.environ.get("RLTRAIN_ACCELERATORS")
        if gpus is None:
            import torch

            gpus = str(torch.cuda.device_count())
        return verl_command(self.spec, name=self.run.name, checkpoints=self._place, gpus_per_node=int(gpus))

    def _show_reached(self) -> None:
        """Begins where the attempts before came to: a program with nothing left to do writes no step."""
        self._progress = Progress(step=self.counters.step, max_steps=self.spec.stop.max_steps)
        self.show_phase("Starting")

    def _ask(self) -> None:
        self._asked = True

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self.console.message(line)

    def _care(self) -> None:
        now = time.monotonic()
        if now - self._cared >= _CARE_SECONDS:
            self._cared = now
            self.folder.check_owner()
            self._keep_state()

    def _keep_state(self) -> None:
        """Writes down how far the program's lines are in metrics.jsonl: whoever comes after a kill goes on from there."""
        if not self._first:
            self._taken = (self.tail.position, self.metrics.position(), self.counters.step)
        taken, recorded, step = self._taken
        state = {
            "attempt": self._attempt,
            "seconds": self.counters.elapsed,
            "step": step,
            "linesTaken": taken,
            "metricsPosition": recorded,
            "beforeFirstStep": self._first,
            "resumedFrom": self.counters.resumed_from,
            "checkpoint": self._checkpoint.to_document() if self._checkpoint else None,
        }
        write_atomic(self.folder.path / STATE_FILE, dump_json(state) + "\n")

    def _begin_lines(self, *, first: bool) -> None:
        """From here on lines of one start of the program follow; `first`: its first step is not among those taken."""
        self._first = first
        self._early: list[tuple[str, int, dict[str, Any]]] = []
        self._taken = (self.tail.position, self.metrics.position(), self.counters.step)
        self._step_ended = time.monotonic()

    def _catch_up(self, lines: Path, earlier: dict[str, Any]) -> None:
        """Takes what the program wrote before, and nobody read: whoever followed it was killed first."""
        if "linesTaken" not in earlier:
            return
        self.metrics.truncate(int(earlier["metricsPosition"]))
        self.tail = Tail(lines, int(earlier["linesTaken"]))
        self._begin_lines(first=bool(earlier["beforeFirstStep"]))
        self.counters.resumed_from = earlier["resumedFrom"]
        self._read_progress()
        if self._first:
            self._record_early()

    def _read_progress(self) -> None:
        for text in self.tail.read():
            now = time.monotonic()
            line = parse_line(text, now=time.time(), wall_seconds=now - self._step_ended)
            if isinstance(line, StepRecord):
                self._step(line)
            elif isinstance(line, Event):
                self._event(line)
            else:
                self._bad(line)

    def _step(self, record: StepRecord) -> None:
        if self._first:
            # It may have gone on from a checkpoint before the last step that was reported: no step is listed twice.
            self._first = False
            self.metrics.truncate(position_of_step(self.metrics.path, record.step))
            self.counters.step = min(self.counters.step, record.step - 1)
            if self.counters.resumed_from is not None:
                self.counters.resumed_from = self.counters.step
            self._record_early()
        if record.step <= self.counters.step:
            self._bad(BadLine(f"step {record.step} does not come after step {self.counters.step}"))
            return
        steps, self._step_ended = record.step - self.counters.step, time.monotonic()
        self.counters.step = record.step
        self.counters.saw_step(record.wall_seconds / steps, record.reward_mean)
        if record.heldout_score is not None:
            self.counters.heldout, self.counters.heldout_step = record.heldout_score, record.step
        self.metrics.write(record)
        self.console.step(record, self.counters.eta(self.spec))
        phase = self._progress.phase
        self._progress = self.counters.progress(self.spec, record).model_copy(update={"phase": phase})
        self.server.update(self._progress, record)

    def _event(self, event: Event) -> None:
        fields = {key: value for key, value in event.fields.items() if key.isidentifier() and key != "kind"}
        score = fields.get("score")
        if event.kind == "evaluation" and isinstance(score, int | float) and not isinstance(score, bool):
            self.counters.heldout, self.counters.heldout_step = float(score), event.step
            self.console.evaluation(event.step, float(score))
            self._progress = self._progress.model_copy(update={"heldout_score": round(float(score), 3)})
            self.server.update(self._progress)
        elif event.kind == "checkpoint":
            where = printable(fields.get("path") or self._place, LONGEST_URI)
            # One that it wrote by itself answers nobody who asks: what it writes when it stops is newer.
            self._show_checkpoint(CheckpointStatus(step=event.step, uri=where, time=datetime.now(UTC)))
        self._record_event(event.kind, event.step, fields)
        if event.kind == "checkpoint" and self.remote is not None:
            self._keep_state()
            try:  # where the program will go on, should this disk be lost
                self.remote.put(*_KEPT_OUTSIDE)
            except CheckpointError as error:
                self.console.warning(str(error))

    def _show_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        self._checkpoint = checkpoint
        self.server.show_checkpoint(checkpoint)

    def _record_event(self, kind: str, step: int, fields: dict[str, Any]) -> None:
        if self._first:  # its place is after the step that this attempt goes on from, which is not known yet
            self._early.append((kind, step, {**fields, "time": time.time()}))
        else:
            self.metrics.event(kind, step=step, **fields)

    def _record_early(self) -> None:
        if self.counters.resumed_from is not None:
            self.metrics.event("resumed", step=self.counters.resumed_from)
        for kind, step, fields in self._early:
            self.metrics.event(kind, step=step, **fields)
        self._early.clear()

    def _bad(self, line: BadLine) -> None:
        """Says once what is wrong with a line: a program that writes it wrong does so all the time."""
        if not self.counters.skipped:
            self.console.warning(
                f"a line of RLTRAIN_METRICS is left out, as {line.why}; so are others like it"
            )
        self.counters.skipped += 1
