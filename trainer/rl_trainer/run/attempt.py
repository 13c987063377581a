"""What our training loop and a program of the user's have in common: opening, status, summary, closing."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from rl_api import CheckpointStatus, RLTrainingRun
from rl_api.errors import RLTrainError, RunFolderBusy
from rl_api.progress import Phase, Progress
from rl_trainer.observe.console import Console
from rl_trainer.observe.page import write_report
from rl_trainer.observe.summary import write_summary
from rl_trainer.placement.held_time import HeldTime
from rl_trainer.run.attempts_file import ATTEMPTS_FILE, note_attempt
from rl_trainer.run.counters import Counters
from rl_trainer.run.remote_run import RemoteRun
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.status_server import StatusServer
from rl_trainer.run.status_token import take_token


class Attempt:
    """One attempt at a run: a context manager around `_open` and `_close`, which its kinds define."""

    server: StatusServer

    def __init__(self, run: RLTrainingRun, folder: RunFolder, console: Console):
        self.run, self.spec, self.folder, self.console = run, run.spec, folder, console
        self._token = take_token()
        self.counters = Counters()
        self._progress = Progress(max_steps=run.spec.stop.max_steps)
        self.remote = RemoteRun.of(run.spec, folder)
        self._checkpoint: CheckpointStatus | None = None
        # Only where the Ray cluster is the attempt's own, pod by pod: other ones have nodes that are not the run's.
        self.held: HeldTime | None = None
        # Whether learners have GPUs; None: they are not rltrain's own.
        self.learner_gpus: bool | None = None
        # What ended the attempt, once it has ended: for those who are called then.
        self.ended_by: BaseException | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            if self.remote is not None:
                self.remote.claim()
                self.remote.bring(ATTEMPTS_FILE)
            self._open()
            self._note("begun", learner_gpus=self.learner_gpus)
        except BaseException as error:
            self.ended_by = error
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_by = error
        with closing(self._stack):
            try:
                self._close(error)
                if not isinstance(error, RunFolderBusy):
                    reason = "done" if error is None else type(error).__name__
                    self._note("ended", reason=reason, **self._held())
                write_report(self.folder.path)
            except RLTrainError as problem:
                if error is None:  # else that says why: the same disk is full
                    self.console.warning(str(problem))
            self._keep_outside(error)

    def _note(self, event: str, **fields: Any) -> None:
        note_attempt(self.folder.path, event, attempt=self.folder.attempt, step=self.counters.step, **fields)

    def _held(self) -> dict[str, float | None]:
        """Accelerator seconds and pod seconds of this attempt; None: nobody here knows."""
        if self.held is None:
            return {"accelerator_seconds": None, "pod_seconds": None}
        self.held.count()
        return {
            "accelerator_seconds": round(self.held.accelerators, 1),
            "pod_seconds": round(self.held.pods, 1),
        }

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self, error: BaseException | None) -> None:
        """What is written last, before the report; `error`: what ended the attempt."""
        raise NotImplementedError

    def _keep_outside(self, error: BaseException | None) -> None:
        """Copies the results to the object store, which is what is left of a run when its pods are gone."""
        if self.remote is None or isinstance(error, RunFolderBusy):
            return
        try:
            self.remote.keep(hurry=error is not None)
        except RLTrainError as problem:
            if error is None:
                self.ended_by = problem
                raise
            self.console.warning(str(problem))

    def _serve(self, on_checkpoint: Callable[[], None]) -> None:
        """Starts the status server, as the operator says in the environment; `on_checkpoint`: one is asked for."""
        self.server = self._stack.enter_context(
            StatusServer(
                self.run.name,
                host=os.environ.get("RLTRAIN_STATUS_HOST", "127.0.0.1"),
                port=self.spec.server.port,
                token=self._token,
                on_checkpoint=on_checkpoint,
            )
        )

    def show_phase(self, phase: Phase) -> None:
        """What /status says the run is doing; the numbers stay."""
        self._progress = self._progress.model_copy(update={"phase": phase, "updated_at": datetime.now(UTC)})
        self.server.update(self._progress)

    def _summarize(self, reason: str) -> dict[str, Any]:
        """Writes summary and report of a run that has ended for `reason`; returns the summary."""
        summary = write_summary(
            self.folder.path,
            name=self.run.name,
            seed=self.spec.seed,
            stop_reason=reason,
            resumed_from=self.counters.resumed_from,
            wall_seconds=self.counters.elapsed,
        )
        write_report(self.folder.path)
        return summary
