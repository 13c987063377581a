"""What a run keeps in `checkpoint.storage.s3` beside its checkpoints: who trains there, and what a person looks at.

A pod's disk ends with the pod. So the folder there gets what a run folder on a disk of its own would hold
afterwards: the trained policy, the report and what it is made of. Its checkpoints are those of
`rl_trainer.checkpoint.remote`.
"""

from __future__ import annotations

from rl_api import RunSpec
from rl_api.errors import RunFolderBusy
from rl_api.planner.profile import PROFILE_FILE
from rl_trainer.checkpoint.remote import clear, delete, steps, sweep
from rl_trainer.observe.metrics import METRICS_FILE, TENSORBOARD_FOLDER
from rl_trainer.run.attempts_file import ATTEMPTS_FILE
from rl_trainer.run.run_folder import RUN_FILE, RunFolder, attempt_after
from rl_trainer.storage.ownership import OWNER_FILE, check_owner, owner_of, taken_over
from rl_trainer.storage.remote_folder import RemoteFolder

# In the order in which they are copied: what is read on resuming names positions in those before it.
_SMALL = (
    RUN_FILE,
    METRICS_FILE,
    ATTEMPTS_FILE,
    "program.json",
    "examples.json",
    "summary.json",
    "timeline.json",
    PROFILE_FILE,
    "report.html",
)
_KEPT = (*_SMALL, "program.log", TENSORBOARD_FOLDER, "final")
# The policy that reinforcement learning began with: there where learners upload it themselves.
INITIAL = "initial"
# Seconds without a byte moved at the end of a run that was stopped: a pod is killed soon after.
HURRY_SECONDS = 20.0


class RemoteRun:
    """One process's claim on the folder of a run in an object store.

    Attributes:
        remote: the folder.
    """

    def __init__(self, uri: str, folder: RunFolder) -> None:
        self.remote, self.folder = RemoteFolder(uri), folder

    @classmethod
    def of(cls, spec: RunSpec, folder: RunFolder) -> RemoteRun | None:
        """That of a run; None when its checkpoints are kept elsewhere."""
        storage = spec.checkpoint.storage if spec.checkpoint is not None else None
        return cls(storage.s3, folder) if storage is not None and storage.s3 is not None else None

    def claim(self) -> None:
        """Take the folder: from an earlier attempt of this run, or as the first. Before anything is trained.

        Raises:
            RunFolderBusy: a later attempt has it; or it holds a run, and neither resume nor overwrite is
                asked for.
            CheckpointError: it cannot be reached or written.
        """
        self.remote.within(f"checkpoint.storage.s3: {self.remote.uri} cannot be used", self._claim)

    def check_owner(self) -> None:
        """Call before anything is written that a later attempt would read.

        Raises:
            RunFolderBusy: another process has taken the folder over.
        """
        check_owner(self.remote, self.folder.token)

    def keep(self, *, hurry: bool = False) -> None:
        """Copy results there, as far as there are any.

        Args:
            hurry: the process is about to be killed: small files only, and a short deadline.

        Raises:
            CheckpointError: they cannot be copied; here they are safe.
            RunFolderBusy: another process has taken the folder over.
        """
        remote = RemoteFolder(self.remote.uri, stalled=HURRY_SECONDS) if hurry else self.remote
        names: tuple[str, ...] = _SMALL if hurry else _KEPT
        metrics = self.folder.path / METRICS_FILE
        if not metrics.exists() or metrics.stat().st_size == 0:
            names = ()  # it failed before its first step: nothing that the next try would have to spare
        remote.within(
            f"The results of the run could not be copied to {remote.uri}",
            lambda: self._copy(remote, names),
            f"They are in {self.folder.path}.",
        )

    def sweep(self) -> None:
        """Delete what killed writers have left of checkpoints that became none. Raises as `forget`."""

        def work() -> None:
            self.check_owner()
            sweep(self.remote, self.check_owner)

        self.remote.within(f"{self.remote.uri} still has files of unfinished checkpoints", work)

    def forget(self, step: int) -> None:
        """Delete what there is of a step that has become no checkpoint.

        Raises:
            CheckpointError: it cannot be deleted, or not soon: the next attempt deletes it.
            RunFolderBusy: another process has taken the folder over.
        """
        remote = RemoteFolder(self.remote.uri, stalled=HURRY_SECONDS)

        def work() -> None:
            self.check_owner()
            if step not in steps(remote):
                clear(remote, step)

        remote.within(f"{remote.uri} still has files of step {step}", work)

    def put(self, *names: str) -> None:
        """Copy files there, in this order.

        Raises:
            CheckpointError: they cannot be copied.
            RunFolderBusy: another process has taken the folder over.
        """
        what = f"{', '.join(names)} could not be copied to {self.remote.uri}"
        self.remote.within(what, lambda: self._copy(self.remote, names))

    def bring(self, *names: str) -> None:
        """Copy files from there that are missing here. Raises CheckpointError when that fails."""

        def work() -> None:
            for name in names:
                if not (self.folder.path / name).exists() and self.remote.exists(name):
                    self.remote.download(name, self.folder.path / name)

        self.remote.within(f"checkpoint.storage.s3: {self.remote.uri} cannot be read", work)

    def _claim(self) -> None:
        owner = owner_of(self.remote)
        if attempt_after(owner, self.folder.token):
            raise RunFolderBusy(taken_over(self.remote, owner, self.folder.token))
        if not self.folder.resume:
            self._make_room()
        self.remote.write(OWNER_FILE, self.folder.token.encode())

    def _make_room(self) -> None:
        there, kept = steps(self.remote), set(self.remote.names()) & set(_KEPT)
        if not self.folder.overwrite and (there or kept):
            raise RunFolderBusy(
                f"checkpoint.storage.s3: {self.remote.uri} holds an earlier run; add --resume to go on with it, "
                "--overwrite to start anew, or choose another folder"
            )
        for step in there:
            delete(self.remote, step)
        for name in (*kept, INITIAL):
            self.remote.delete(name)

    def _copy(self, remote: RemoteFolder, names: tuple[str, ...]) -> None:
        """Those of the files and folders that are there."""
        self.check_owner()
        for name in names:
            source = self.folder.path / name
            if source.is_file():
                remote.upload(source, name)
                continue
            for path in sorted(path for path in source.rglob("*") if path.is_file()):
                remote.upload(path, f"{name}/{path.relative_to(source).as_posix()}")
