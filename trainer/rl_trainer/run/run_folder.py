"""The run folder: who may write it, and what lies where."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import yaml

from rl_api import RLTrainingRun
from rl_api.errors import CheckpointError, RunFolderBusy
from rl_api.planner.first import PRIOR_VARIABLE, First
from rl_api.planner.placement import Placement
from rl_api.planner.profile import PROFILE_FILE, RunProfile
from rl_trainer.storage.files import Closes

RUN_FILE = "run.yaml"
_LOCK = ".lock"
# Who trains here, for file systems without locks and for nodes that are cut off: the last one to come owns the folder.
_OWNER = ".owner"
# More than Kubernetes gives a pod to end.
_LAST_CHECKPOINT_SECONDS = 60.0
_LOOK_SECONDS = 0.2
# Everything a run writes; `--overwrite` removes these and nothing else.
_OWN = (
    "checkpoints",
    "initial",
    "final",
    "model",
    "tensorboard",
    "metrics.jsonl",
    "attempts.jsonl",
    "timeline.json",
    PROFILE_FILE,
    "summary.json",
    "examples.json",
    "report.html",
    RUN_FILE,
    "run.json",
    "program.jsonl",
    "program.json",
    "program.log",
    "driver.log",
)


class RunFolder(Closes):
    """One process's claim on a run folder, held until `close`.

    Attributes:
        checkpoints: folder of numbered checkpoints.
        resume: go on from the newest good checkpoint, if there is one.
        overwrite: an earlier run is removed.
        token: who we are, for those that come after us: the operator's words, else host and process.
        initial: Hugging Face folder of the policy that reinforcement learning started from (the KL reference).
        final: Hugging Face folder of the trained policy.
    """

    def __init__(
        self, path: Path, *, resume: bool = False, overwrite: bool = False, search: Path | None = None
    ):
        """Claims `path`, making it when it is missing.

        `search` is the folder of the run's file: reward modules and relative data files are looked up there.

        Raises:
            RunFolderBusy: another process trains in it, or it holds a run and neither resume nor overwrite is asked for.
            CheckpointError: it cannot be written.
        """
        self.path = path.resolve()
        self.checkpoints, self.initial, self.final = (
            self.path / name for name in ("checkpoints", "initial", "final")
        )
        self.resume = resume
        self.overwrite = overwrite
        self.search = search
        self.placements_left: list[Placement] | None = None
        self.first: First | None = None  # what a prior has chosen to begin with
        self.planned_by: RunProfile | None = None  # what was measured of such runs before
        self.token = os.environ.get("RLTRAIN_FENCE") or f"{socket.gethostname()}:{os.getpid()}"
        ours = (path / _LOCK).exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / _LOCK).open("a+")
            self._claim(path)
            self._own()
        except OSError as error:
            raise CheckpointError(
                f"--out {path}: the run folder cannot be written ({error.strerror})"
            ) from error
        try:
            self._make_room(path, ours)
        except BaseException:
            self.close()
            raise

    def _claim(self, path: Path) -> None:
        """Takes the lock; that of a head that this one replaces is waited for, as it writes its last checkpoint."""
        deadline = time.monotonic()
        if os.environ.get("RLTRAIN_FENCE") and self._owner() not in ("", self.token):
            deadline += _LAST_CHECKPOINT_SECONDS
        while not self._locks():
            if time.monotonic() >= deadline:
                self._lock.seek(0)
                owner = self._lock.read().strip() or "unknown"
                self._lock.close()
                hint = "choose another --out or stop it first"
                if self._stands_still(owner):
                    hint = (
                        f"it is stopped, so that nothing happens: kill -CONT {owner} lets it go on, kill -KILL {owner} ends "
                        "it, for --resume to go on from its last checkpoint"
                    )
                raise RunFolderBusy(f"--out {path}: process {owner} is training in this run folder; {hint}")
            time.sleep(_LOOK_SECONDS)
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _stands_still(self, owner: str) -> bool:
        """Whether the process that holds the lock is one of this machine, and stopped: SIGSTOP, or Ctrl-Z in a terminal."""
        if self._owner() != f"{socket.gethostname()}:{owner}":
            return False
        try:
            return bool(psutil.Process(int(owner)).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def _locks(self) -> bool:
        """Whether the lock is ours, or the file system has none: nothing to be known there."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _own(self) -> None:
        """Takes the folder over from an earlier attempt of the same run."""
        owner = self._owner()
        if attempt_after(owner, self.token):
            self._lock.close()
            raise RunFolderBusy(self._taken_over(owner))
        temporary = self.path / f"{_OWNER}.{os.getpid()}"
        temporary.write_text(self.token)
        temporary.replace(self.path / _OWNER)

    def check_owner(self) -> None:
        """Call before anything is written that a later attempt would read.

        Raises:
            RunFolderBusy: another process has taken the folder over.
        """
        owner = self._owner()
        if owner != self.token:
            raise RunFolderBusy(self._taken_over(owner))

    def _owner(self) -> str:
        try:
            return (self.path / _OWNER).read_text().strip()
        except FileNotFoundError:
            return ""

    def _taken_over(self, owner: str) -> str:
        return (
            f"--out {self.path}: {owner or 'another process'} has taken over this run folder from {self.token}, which "
            "stops and writes nothing more"
        )

    def _make_room(self, path: Path, ours: bool) -> None:
        there = [name for name in _OWN if (path / name).exists()]
        if self.overwrite:
            if there and not ours:
                raise RunFolderBusy(
                    f"--overwrite: {path} holds {', '.join(there)}, but no run of rltrain; choose another --out"
                )
            self._clear()
        elif not self.resume and self._holds_a_run(path):
            raise RunFolderBusy(
                f"--out {path}: this folder holds an earlier run; add --resume to go on with it, --overwrite to "
                "start anew, or choose another --out"
            )

    @staticmethod
    def _holds_a_run(path: Path) -> bool:
        """Whether there is something to lose: a run that failed before its first step left nothing."""
        metrics = path / "metrics.jsonl"
        return (metrics.exists() and metrics.stat().st_size > 0) or any(path.glob("checkpoints/[!.]*"))

    @property
    def attempt(self) -> int | None:
        """Number of this attempt, as the operator counts; None without one."""
        return _run_and_attempt(self.token)[1] or None

    @property
    def by_prior(self) -> bool:
        """Whether a prior has chosen with which placement the attempt begins, here or at the operator."""
        return self.first is not None or PRIOR_VARIABLE in os.environ

    def write_run(self, run: RLTrainingRun) -> None:
        """Keeps the run as it was resolved, overrides included."""
        document = run.model_dump(by_alias=True, mode="json", exclude_none=True)
        (self.path / RUN_FILE).write_text(yaml.safe_dump(document, sort_keys=False))

    def close(self) -> None:
        """Gives the folder up."""
        self._lock.close()

    def _clear(self) -> None:
        for name in _OWN:
            target = self.path / name
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)


def attempt_after(owner: str, token: str) -> bool:
    """Whether `owner` is of a later attempt of the run than `token`: the operator counts them, `uid/number/pod`.

    Of two pods of one attempt the one that came last owns the folder.
    """
    run, number = _run_and_attempt(owner)
    own_run, own_number = _run_and_attempt(token)
    return run == own_run and number > own_number


def _run_and_attempt(token: str) -> tuple[str, int]:
    run, _, rest = token.partition("/")
    number = rest.partition("/")[0]
    return (run, int(number)) if number.isdecimal() else (token, 0)
