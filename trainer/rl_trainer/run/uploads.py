"""Checkpoints and exports whose tensors learners write into the object store, as they do not see the driver's folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from rl_api.errors import CheckpointError, RLTrainError
from rl_trainer.checkpoint.manifest import Checkpoint, files_in, parse_manifest, step_name
from rl_trainer.checkpoint.remote import clear, complete, steps
from rl_trainer.checkpoint.store import CheckpointStore, Draft
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.run.remote_run import HURRY_SECONDS, INITIAL, RemoteRun
from rl_trainer.run.run_folder import RUN_FILE
from rl_trainer.storage.ownership import Upload
from rl_trainer.storage.remote_folder import RemoteFolder

# Of a model folder: without it there is none.
_LAST = "config.json"


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
        problem = f"{remote.uri} cannot be used for the checkpoint of step {step}"
        return self._begin(step_name(step), problem, lambda: clear(remote, step))

    def saying(self, step: int) -> AbstractContextManager[None]:
        """As `CheckpointStore.saying`, of what learners write."""
        return self.store.saying(step, "", self.remote.remote.uri)

    def complete(self, draft: Draft, content: bytes, copied: Collection[str] = ()) -> str:
        """Makes a checkpoint of what learners have uploaded, of the draft, and of copies of files of the run's folder there;
        returns where it is to be found. `copied`: names of those, in both folders."""
        info = parse_manifest(content, draft.folder)
        self._copy(copied, "", f"{step_name(info.step)}/", f"the checkpoint of step {info.step}")
        with contextlib.suppress(CheckpointError):  # where the store is away, the next line says so
            self.remote.put(RUN_FILE)
        place = complete(self.store, self.remote.remote, draft.folder, content, self.remote.check_owner)
        draft.close()
        return place

    def begin_export(self, name: str) -> Upload:
        """Where learners upload their files of a model folder, made empty: from here on an earlier one is none.

        Raises:
            CheckpointError: the folder cannot be used.
            RunFolderBusy: a later attempt has it.
        """
        remote = self.remote.remote

        def empty() -> None:
            remote.delete(f"{name}/{_LAST}")
            remote.delete(name)
            remote.abort_parts(name)

        return self._begin(name, f"{remote.uri}/{name} cannot be used", empty)

    def _begin(self, name: str, problem: str, empty: Callable[[], None]) -> Upload:
        """Where learners upload their files, once `empty` has made it empty; `problem`: what is said where that fails."""
        remote = self.remote.remote

        def work() -> None:
            self.remote.check_owner()
            empty()

        remote.within(problem, work)
        return Upload(remote.uri, name, self.remote.folder.token)

    def complete_export(self, name: str, folder: Path) -> None:
        """Uploads the files of `folder` to what learners have uploaded, with which it is a model folder. Raises as
        `begin_export`."""
        remote = self.remote.remote

        def work() -> None:
            self.remote.check_owner()
            for file in sorted(files_in(folder), key=lambda file: file == _LAST):
                remote.upload(folder / file, f"{name}/{file}")

        remote.within(f"{remote.uri}/{name} cannot be written", work)

    def bring_initial(self, checkpoint: Checkpoint) -> Digests:
        """Puts the policy that a run began with from the checkpoint that it goes on from into the run's folder there, whose
        copies of it later checkpoints have; of each file size and SHA-256. The store copies, nothing of it comes here.

        Raises as `begin_export`.
        """
        found = {name: digest for name, digest in checkpoint.files.items() if name.startswith(f"{INITIAL}/")}
        self._copy(found, f"{step_name(checkpoint.step)}/", "", "the policy that the run began with")
        return found

    def _copy(self, names: Collection[str], source: str, target: str, what: str) -> None:
        """Has the store copy files from one of its folders into another."""
        remote = self.remote.remote

        def work() -> None:
            self.remote.check_owner()
            for name in names:
                remote.copy(f"{source}{name}", f"{target}{name}")

        if names:
            remote.within(f"{what} could not be copied within {remote.uri}", work)

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
