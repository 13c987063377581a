"""Checkpoints whose tensors learners write into the object store, as they do not see the checkpoint folder."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from rl_api.errors import CheckpointError, RLTrainError
from rl_trainer.checkpoint.manifest import step_name
from rl_trainer.checkpoint.remote import clear, complete, steps
from rl_trainer.checkpoint.store import CheckpointStore, Draft
from rl_trainer.run.remote_run import HURRY_SECONDS, RemoteRun
from rl_trainer.run.run_folder import RUN_FILE
from rl_trainer.storage.ownership import Upload
from rl_trainer.storage.remote_folder import RemoteFolder


class Uploads:
    """Those of one run; `store`: where the driver's part of them is written, which says from now on what is there."""

    def __init__(self, remote: RemoteRun, store: CheckpointStore):
        self.remote, self.store = remote, store
        store.untouched = self._untouched

    def begin(self, step: int) -> Upload:
        """Where learners upload their files of a step, made empty: from here on an earlier checkpoint of it is none.

        Raises:
            CheckpointError: the folder cannot be used.
            RunFolderBusy: a later attempt has it.
        """
        remote = self.remote.remote

        def work() -> None:
            self.remote.check_owner()
            clear(remote, step)

        remote.within(f"{remote.uri} cannot be used for the checkpoint of step {step}", work)
        return Upload(remote.uri, step_name(step), self.remote.folder.token)

    def saying(self, step: int) -> AbstractContextManager[None]:
        """As `CheckpointStore.saying`, of what learners write."""
        return self.store.saying(step, "", self.remote.remote.uri)

    def complete(self, draft: Draft, content: bytes) -> str:
        """Makes a checkpoint of what learners have uploaded, and of the draft; returns where it is to be found."""
        with contextlib.suppress(CheckpointError):  # where the store is away, the next line says so
            self.remote.put(RUN_FILE)
        place = complete(self.store, self.remote.remote, draft.folder, content, self.remote.check_owner)
        draft.close()
        return place

    def clear(self, step: int) -> None:
        """Deletes what learners have uploaded of a step that becomes no checkpoint; the rest the next attempt deletes."""
        with contextlib.suppress(RLTrainError):
            self.remote.forget(step)

    def _untouched(self) -> str:
        there = RemoteFolder(self.remote.remote.uri, stalled=HURRY_SECONDS)
        try:
            found = there.within(f"{there.uri} cannot be read", lambda: steps(there))
        except CheckpointError:
            return "The one before is untouched"
        return (
            f"The checkpoint of step {found[-1]} there is untouched"
            if found
            else "There is none before it there"
        )
