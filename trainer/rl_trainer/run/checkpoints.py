"""How checkpoints of a run are begun, finished and found; `Actors.state` gathers what `checkpoint_files.py` lays out.

One checkpoint is one moment: the driver takes it between two steps, the buffer answers with one snapshot.
Killed at any time, a resumed run goes on from the newest one: weights, optimizer and counters as they were,
every prompt that was ready, running or waiting comes again under its own index, and metrics written after it
are cut off.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_api import CheckpointStatus, RunSpec
from rl_api.errors import CheckpointError, InvalidConfig
from rl_trainer.checkpoint.manifest import Checkpoint, parse_manifest
from rl_trainer.checkpoint.remote import fetch, mirror, survey
from rl_trainer.checkpoint.state import LearnerState, RunState, SavedLearners, Unfinished
from rl_trainer.checkpoint.store import CheckpointStore, Draft, Writer
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.model.export import describe_adapter, describe_weights
from rl_trainer.observe.examples import EXAMPLES_FILE
from rl_trainer.observe.metrics import METRICS_FILE, MetricsWriter
from rl_trainer.run.checkpoint_files import (
    ADAPTER_FOLDER,
    LEARNED,
    MODEL,
    is_large,
    own_files,
    state_of,
    unpack,
)
from rl_trainer.run.copies import copy, on_a_thread
from rl_trainer.run.counters import Counters
from rl_trainer.run.exports import export_here, export_there
from rl_trainer.run.fixed import fixed_of
from rl_trainer.run.lineage import parent_of
from rl_trainer.run.remote_run import INITIAL, RemoteRun
from rl_trainer.run.run_folder import RUN_FILE, RunFolder
from rl_trainer.run.uploads import Uploads


@dataclass
class _Unfinished:
    """A checkpoint whose tensors learners are writing, or that is being copied to the object store (`copy`)."""

    step: int
    draft: Draft
    writing: Unfinished
    model_folder: Path
    background: bool
    copy: Future[str] | None = None


class Checkpoints:
    """The checkpoints of one run folder; `lineage`: what their manifests say of where they come from (`lineage_of`).

    `warn` is told what is wrong with pins of services.
    """

    def __init__(
        self, spec: RunSpec, folder: RunFolder, remote: RemoteRun | None, warn: Callable[[str], None]
    ):
        self.spec, self.folder, self.remote = spec, folder, remote
        storage = spec.checkpoint.storage if spec.checkpoint else None
        place = folder.path / storage.path if storage and storage.path else folder.checkpoints
        self.outside = self.remote is not None or not place.resolve().is_relative_to(folder.path)
        self.lineage: Mapping[str, Any] = {}
        self._parent: Checkpoint | None = None
        self._unfinished: _Unfinished | None = None
        self._uploads: Uploads | None = None  # where learners do not see the folder
        # Of the policy that the run began with, where it lies in the object store and not on this disk.
        self._initial: Digests = {}
        self._small = folder.path / MODEL / ".checkpoint"  # files of one whose tensors stay where they are
        self._warn, self._warned = warn, False
        self.store = CheckpointStore(place, keep=spec.checkpoint.keep if spec.checkpoint else 1, tell=warn)

    @property
    def resumed(self) -> Checkpoint | None:
        """What `latest` has found, until a newer one is begun."""
        return self._parent

    def latest(
        self, warn: Callable[[str], None], *, before: int | None = None, passed: str = "", whole: bool = False
    ) -> Checkpoint | None:
        """The newest good checkpoint; damaged ones are passed over, with a warning each. Unless it is to be `whole`,
        tensors of one in the object store stay there, unchecked. `before`, `passed`: see `survey`.

        Raises:
            CheckpointError: none can be used.
            InvalidConfig: it belongs to another run.
        """
        found = None
        if self.remote is not None and not whole:
            found = survey(self.remote.remote, self._small, is_large, before=before, passed=passed)
        here = self.store.list()
        if found is None or (here and here[-1].step >= found.step):  # it may be the same one
            copy = fetch(self.store, self.remote.remote) if self.remote is not None else None
            for sentence in copy.skipped if copy is not None else ():
                warn(sentence)
            found = self.store.load_latest()
        if found is None:
            return None
        for sentence in found.skipped:
            warn(sentence)
        saved, now = found.metadata["fixed"], fixed_of(self.spec)
        for name in sorted(saved.keys() | now.keys()):
            if saved.get(name) != now.get(name):
                raise InvalidConfig(
                    f"spec.{name}: found {now.get(name)}, but the checkpoint of step {found.step} was made with "
                    f"{saved.get(name)}; resume with the value the run had, or start anew with --overwrite"
                )
        self._parent = found
        return found

    def ask_learners(self, reach: Callable[[Path], bool]) -> str | None:
        """Find out whether learners see the checkpoint folder, or are to upload what they hold. To be called before `begin`.

        What to tell where `checkpoint.asynchronous: always` is without effect; None: it has one, or is not asked for.
        `reach`: whether all learners see a folder that was just made; see `Learners.reach`.
        """
        if self._wanted != "always" and self.remote is None:
            return None
        if self.remote is not None:
            with contextlib.suppress(CheckpointError):  # the first checkpoint will say so
                self.remote.sweep()
        with self.store.probe() as folder:
            seen = folder is None or reach(folder)
        if self.remote is not None and not seen:
            self._uploads = Uploads(self.remote, self.store)
            if self._parent is not None and self.initial is not None:
                with contextlib.suppress(
                    CheckpointError
                ):  # there is no such checkpoint there: this disk has its files
                    self._initial = self._uploads.bring_initial(self._parent)
        if seen or self._uploads is not None:
            return None
        return (
            "checkpoint.asynchronous is always, but not all learners see the checkpoint folder "
            f"{self.store.folder}: what those hold goes to the driver, and training waits for it"
        )

    def begin(
        self,
        counters: Counters,
        state: RunState[LearnerState],
        metrics: MetricsWriter,
        model_folder: Path,
        *,
        background: bool = False,
    ) -> None:
        """Begins the checkpoint of `counters.step`, in which the actors were as `state` says; `wait` or `finished` ends it.

        `background`: where the run wants that (`checkpoint.asynchronous`), learners may go on as soon as this returns: they
        have copied what they write.

        Raises:
            CheckpointError: it cannot be written; the one before is untouched.
            ActorDied, DeadlineExceeded: a learner did not write what it holds; the one before is untouched.
            RunFolderBusy: a later attempt has taken the run folder over, or the one in the object store.
        """
        assert self._unfinished is None, "a second checkpoint waits for the first"
        self.folder.check_owner()
        learned, step = state.learners, counters.step
        metadata = {
            "counters": counters.dump(),
            "buffer": state.buffer,
            "optimizer_steps": learned.optimizer_steps,
            "metrics_position": metrics.position(),
            "fixed": fixed_of(self.spec),
            "lineage": {**self.lineage, "parent": parent_of(self._parent)},
        }
        draft = self.store.begin(step, metadata)
        try:
            upload = self._uploads.begin(step) if self._uploads is not None else None
            with self._saying(step):
                parts = {part: LEARNED[part] for part in learned.contents}
                background = background and self._asynchronous(learned)
                writing = learned.write(draft.folder, parts, background=background, upload=upload)
        except BaseException:
            draft.close()
            self._clear(step)
            raise
        if writing.refused:
            self._refused(writing.refused)
        self._unfinished = _Unfinished(step, draft, writing, model_folder, background)
        try:
            draft.write({**own_files(state), **self._lost_with_a_disk(metrics)})
        except BaseException:
            self.give_up()
            raise

    @property
    def unfinished_step(self) -> int | None:
        """Of the checkpoint that learners are writing; None: of none."""
        return self._unfinished.step if self._unfinished is not None else None

    @property
    def in_background(self) -> bool:
        """Whether learners go on while they write one."""
        return self._unfinished is not None and self._unfinished.background

    def finished(self) -> CheckpointStatus | None:
        """The checkpoint that was begun, where it is written and copied by now; None: it is not. Raises as `begin`."""
        return self._end(wait=False)

    def wait(self) -> CheckpointStatus:
        """The checkpoint that was begun, once it is there. Raises as `begin`."""
        found = self._end(wait=True)
        assert found is not None, "it was waited for"
        return found

    def give_up(self) -> None:
        """Nothing is left of a checkpoint that is not finished."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.writing.drop()
            unfinished.draft.close()
            if unfinished.copy is None or unfinished.copy.done():  # else it may be one a moment later
                self._clear(unfinished.step)

    def _end(self, *, wait: bool) -> CheckpointStatus | None:
        unfinished = self._unfinished
        assert unfinished is not None, "one was begun"
        try:
            if unfinished.copy is None:
                finished = self._finish(unfinished, wait=wait)
                if finished is None:
                    return None
                self._parent, work = finished
                unfinished.copy = on_a_thread(work)
            if not wait and not unfinished.copy.done():
                return None
            place = unfinished.copy.result()
        except BaseException:
            self.give_up()
            raise
        self._unfinished = None
        return CheckpointStatus(step=unfinished.step, uri=place, time=datetime.now(UTC))

    def _finish(self, unfinished: _Unfinished, *, wait: bool) -> tuple[Checkpoint, Callable[[], str]] | None:
        """The checkpoint, once learners have written their files, in the store or as far as they have not uploaded it; and
        what is left to be done to it, which says where it is to be found then. None: they are still at it."""
        with self._saying(unfinished.step):
            files = unfinished.writing.wait() if wait else unfinished.writing.finished()
            if files is None:
                return None
            folder, lora = unfinished.draft.folder, self.spec.learner.lora
            describe_weights(unfinished.model_folder, folder / MODEL, files)
            if lora is not None:
                describe_adapter(lora, str(self.folder.initial), folder / ADAPTER_FOLDER)
        self.folder.check_owner()
        if files.uploaded or self._initial:
            uploads, initial = self._uploads, tuple(self._initial)
            assert uploads is not None, "there is what the driver has not"
            content = unfinished.draft.manifest(
                {**files.digests, **self._initial}, {*files.uploaded, *initial}
            )
            return parse_manifest(content, folder), lambda: uploads.complete(
                unfinished.draft, content, initial
            )
        info = unfinished.draft.finish(files.digests)
        return info, lambda: self._copy_away(info)

    def _saying(self, step: int) -> AbstractContextManager[None]:
        """What keeps learners from writing, as a sentence."""
        return self._uploads.saying(step) if self._uploads is not None else self.store.saying(step, "")

    def _refused(self, why: str) -> None:
        """Warns, once, that learners do not upload what they hold."""
        if not self._warned:
            self._warned = True
            self._warn(
                f"learners do not upload checkpoints themselves, and send them through the driver: {why}"
            )

    def _clear(self, step: int) -> None:
        if self._uploads is not None:
            self._uploads.clear(step)

    def _copy_away(self, info: Checkpoint) -> str:
        """Copies a finished checkpoint to the object store, where there is one; returns where it is to be found."""
        if self.remote is None:
            return str(info.path)
        # First: who finds the checkpoint finds which prompts were held out. Where the store is away, the copy of the
        # checkpoint says so, and where that is safe.
        with contextlib.suppress(CheckpointError):
            self.remote.put(RUN_FILE)
        return mirror(self.store, self.remote.remote, self.remote.check_owner)

    def unpack(self, checkpoint: Checkpoint) -> Path:
        """Puts into the run folder what a resumed run needs there; returns a model folder that outlives the checkpoint.

        Raises:
            CheckpointError: the run folder cannot be written, or the policy that the run began with is nowhere.
        """
        model = unpack(checkpoint, self.folder)
        elsewhere = any(name.startswith(f"{INITIAL}/") for name in checkpoint.elsewhere)
        if self.initial is not None and not elsewhere and not self.initial.exists():
            use = (
                "that LoRA's adapters belong to, and it is missing; bring it back"
                if self.spec.learner.lora is not None
                else "that the KL penalty refers to, and it is missing; bring it back, or set algorithm.kl.coefficient to 0"
            )
            raise CheckpointError(f"{self.folder.initial}: this folder holds the policy {use}")
        return model

    def read(self, checkpoint: Checkpoint) -> RunState[SavedLearners]:
        """What `begin` was given of the actors; of the learners, where it lies."""
        state = state_of(checkpoint, self.spec.learner.ranks)
        shutil.rmtree(self._small, ignore_errors=True)
        return state

    @property
    def initial(self) -> Path | None:
        """The policy that the run began with, where training needs it: as KL reference, or as the base of LoRA."""
        needed = self.spec.algorithm.kl.coefficient > 0 or self.spec.learner.lora is not None
        return self.folder.initial if needed else None

    def export(self, learned: LearnerState, model_folder: Path, target: Path) -> None:
        """Writes the weights as a Hugging Face folder: `target` of the run folder or, where learners upload what they hold,
        one of the same name in the object store. No checkpoint may be unfinished. Raises as `export_here`, `export_there`.
        """
        assert self._unfinished is None, "learners would drop the checkpoint that they are writing"
        if self._uploads is None:
            export_here(learned, model_folder, target)
            return
        shutil.rmtree(target, ignore_errors=True)  # of an attempt whose learners saw this disk
        written = export_there(self._uploads, learned, model_folder, target.name, self._refused)
        if target == self.initial:
            self._initial = {f"{INITIAL}/{name}": digest for name, digest in written.items()}

    @property
    def _wanted(self) -> str:
        return self.spec.checkpoint.asynchronous if self.spec.checkpoint is not None else "never"

    def _asynchronous(self, learned: LearnerState) -> bool:
        # A pod's memory has a limit, which was set without the copy.
        auto = self._wanted == "auto" and learned.on_gpus and self.folder.attempt is None
        return self._wanted == "always" or auto

    def _lost_with_a_disk(self, metrics: MetricsWriter) -> dict[str, Writer]:
        if not self.outside:
            return {}
        files: dict[str, Writer] = {METRICS_FILE: lambda target: copy(metrics.path, target)}
        examples = self.folder.path / EXAMPLES_FILE
        if examples.exists():
            files[EXAMPLES_FILE] = lambda target: copy(examples, target)
        if self.initial is not None and not self._initial:
            files[INITIAL] = lambda target: copy(self.folder.initial, target)
        return files
