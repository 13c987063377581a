"""The checkpoint store: a folder of finished checkpoints, each whole or not there at all.

Layout, and the promises it rests on:

    step-00000020/          a finished checkpoint: it got this name in one rename, when all of it was on disk
        manifest.json       written last: step, metadata, size and SHA-256 of every file, and of itself
        ...                 the files
    step-00000020.new/      a second save of a step, finished too, about to take the first one's place
    .tmp-...                not finished, or being deleted: worth nothing, removed when the store is opened

1. A process killed at any moment leaves every finished checkpoint as it was.
2. A save that fails (disk full, quota, a writer's error) removes what it began and touches nothing else.
3. Older checkpoints are deleted only after a newer one is finished, and the newest never is, nor one that a policy service
   has pinned (`pins.py`).
4. A damaged checkpoint is never loaded: every byte is checked against the manifest, and the one before is taken.
5. History is a line: saving step 50 removes steps above 50, which belong to a continuation that was given up.

One process writes a store (the run folder's lock sees to it); any number may read it with `read_only`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_api.errors import ActorDied, CheckpointError, DeadlineExceeded, RLTrainError, RunFolderBusy
from rl_trainer.checkpoint.manifest import (
    MANIFEST,
    REPLACEMENT,
    Checkpoint,
    DamagedError,
    build_manifest,
    check_sizes,
    files_in,
    fsync,
    read_manifest,
    settle,
    step_name,
    step_of,
    verify,
    wrong_name,
)
from rl_trainer.checkpoint.pins import LocalPins, pinned
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.error_text import reason
from rl_trainer.storage.files import Closes

# A file's content: the bytes, or a function that writes the file (or a folder of files) at a path.
Writer = Callable[[Path], None] | bytes

_TEMPORARY = ".tmp-"
# Whoever shares the disk can make up new sentences for every save.
_MOST_TOLD = 32
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How libraries that write files themselves (safetensors, torch) word a full disk.
_DISK_FULL_TEXT = ("No space left", "StorageFull", "os error 28", "Disk quota exceeded", "File too large")


class CheckpointStore:
    """Finished checkpoints in one folder, the newest `keep` of them.

    Args:
        folder: where they are; made when missing.
        keep: how many to keep, >= 1. With 1 there is nothing to fall back to.
        read_only: for readers beside the process that trains: neither makes nor deletes anything.
        tell: is given each sentence about pins that are disregarded, once.

    Attributes:
        untouched: says of which checkpoint nothing is lost where one cannot be written.
        held: steps whose copies elsewhere are kept besides.

    Raises:
        CheckpointError: the folder cannot be made or read.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 3,
        *,
        read_only: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, must be at least 1")
        self.folder = Path(folder).absolute()
        self.keep = keep
        self.read_only = read_only
        self._tell, self._told = tell, set[str]()
        self.untouched: Callable[[], str] = self._untouched
        self.held: frozenset[int] = frozenset()
        if read_only:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint folder {self.folder} cannot be used: {reason(error)}."
            ) from error

    def save(
        self, step: int, writers: Mapping[str, Writer], metadata: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Write a checkpoint; when this returns it is on disk, and older ones beyond `keep` are gone.

        Args:
            step: training step, >= 0. One that exists is replaced.
            writers: relative path -> bytes, or a function that is called with the path to write to (a file,
                or a folder it makes).
            metadata: anything JSON can hold.

        Raises:
            CheckpointError: it could not be written. Nothing is left of it, earlier ones are untouched.
            ActorDied, DeadlineExceeded: a writer waited for an actor in vain. The same.
            ValueError, TypeError: a misuse (a path outside the checkpoint, metadata JSON cannot hold).
        """
        with self.begin(step, metadata) as begun:
            begun.write(writers)
            return begun.finish({})

    def begin(self, step: int, metadata: Mapping[str, Any] | None = None) -> Draft:
        """A checkpoint that is none before `Draft.finish`. Arguments and what is raised: see `save`."""
        if self.read_only:
            raise ValueError("this store was opened read_only")
        if step < 0:
            raise ValueError(f"step is {step}, must be at least 0")
        text = json.dumps(dict(metadata or {}))
        with self.saying(step, ""):
            return Draft(self, step, text)

    @contextlib.contextmanager
    def probe(self) -> Iterator[Path | None]:
        """An empty folder beside the checkpoints, of a new name, to see who else sees it; None: it cannot be made now."""
        folder = self.folder / f"{_TEMPORARY}probe-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except OSError:  # the first checkpoint will say so
            yield None
            return
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def tell(self, sentence: str) -> None:
        """Say something of the pins of this run, here or in the copy, unless it was said before."""
        if sentence not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(sentence)
            self._tell(sentence)

    def list(self) -> tuple[Checkpoint, ...]:
        """Finished checkpoints, oldest first: those with a sound manifest and files of the right sizes."""
        found = []
        for step in self._steps():
            with contextlib.suppress(DamagedError):
                found.append(check_sizes(self.path(step)))
        return tuple(found)

    def load_latest(self) -> Checkpoint | None:
        """Verify and return the newest good checkpoint; None when there is none at all.

        DamagedError ones are passed over, each with a sentence in `.skipped`.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged: starting anew must be the user's
            decision.
        """
        skipped: list[str] = []
        for step in reversed(self._steps()):
            try:
                return replace(verify(self.path(step)), skipped=tuple(skipped))
            except DamagedError as error:
                skipped.append(f"The checkpoint of step {step} was skipped: {error}.")
        if skipped:
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be used. {' '.join(skipped)} "
                "Move the folder away to start from the beginning."
            )
        return None

    @contextlib.contextmanager
    def incoming(self, step: int) -> Iterator[Path]:
        """A temporary folder for all files of a checkpoint, manifest included: at the end of the block it becomes `step`.

        It is removed where the block, or the system, raises.
        """
        temporary = self._temporary(f"step-{step}")
        try:
            temporary.mkdir()
            yield temporary
            self._publish(temporary, step)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _publish(self, temporary: Path, step: int) -> None:
        """Everything to disk, then the final name in one rename."""
        for folder, _, _ in os.walk(temporary, topdown=False):
            if Path(folder) == temporary:
                fsync(temporary / MANIFEST)
            fsync(Path(folder))
        final = self.folder / step_name(step)
        if final.exists():
            # A rename cannot replace a folder that has files. From here on `.new` is the step, come what may.
            os.rename(temporary, self.folder / (final.name + REPLACEMENT))
            fsync(self.folder)
            self._finish_replacement(step)
        else:
            os.rename(temporary, final)
            fsync(self.folder)

    def _finish_replacement(self, step: int) -> None:
        final = self.folder / step_name(step)
        if final.exists():
            self._delete(final)
        os.rename(self.folder / (final.name + REPLACEMENT), final)
        fsync(self.folder)

    def _tidy(self) -> None:
        """Finish or clear away what a killed process left."""
        for path in list(self.folder.iterdir()):
            if path.name.startswith(_TEMPORARY):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith(REPLACEMENT) and (step := step_of(path.name)) is not None:
                self._finish_replacement(step)

    def prune(self, saved: int) -> None:
        """Deletes what is not kept beside the checkpoint of step `saved`."""
        older = [info for info in reversed(self.list()) if info.step < saved]
        needed = pinned(LocalPins(self.folder), time.time(), self.tell)
        kept = {saved, *(info.step for info in older[: self.keep - 1])}
        # A later one is of a continuation that was given up, which a resume must not find.
        kept |= {info.step for info in older if (info.step, info.digest) in needed}
        for step in self._steps():
            if step not in kept:
                # Not worth stopping a run for: the next save tries again.
                with contextlib.suppress(OSError):
                    self._delete(self.path(step))

    def _delete(self, path: Path) -> None:
        """Gone at once under its name: a process killed while deleting leaves no half checkpoint."""
        doomed = self._temporary(path.name)
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _steps(self) -> tuple[int, ...]:
        if not self.folder.is_dir():
            return ()
        return tuple(
            sorted({step for path in self.folder.iterdir() if (step := step_of(path.name)) is not None})
        )

    def path(self, step: int) -> Path:
        """The folder of a finished checkpoint."""
        replacement = self.folder / (step_name(step) + REPLACEMENT)
        return replacement if replacement.exists() else self.folder / step_name(step)

    def _temporary(self, name: str) -> Path:
        return self.folder / f"{_TEMPORARY}{name}-{uuid.uuid4().hex[:12]}"

    @contextlib.contextmanager
    def saying(self, step: int, name: str, place: str = "") -> Iterator[None]:
        """What keeps the file `name` of the checkpoint of `step` from being written, as a sentence.

        `place`: where it was to be written, instead of the store's folder.
        """
        try:
            yield
        except (ActorDied, DeadlineExceeded, RunFolderBusy):  # of who writes: not the disk's fault
            raise
        except Exception as error:
            raise CheckpointError(self._failure(step, name, place, error)) from error

    def _failure(self, step: int, name: str, place: str, error: Exception) -> str:
        full = (isinstance(error, OSError) and error.errno in _DISK_FULL) or any(
            text in str(error) for text in _DISK_FULL_TEXT
        )
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(self.folder).free / 1e6:,.0f} MB free)" if full else ""
        advice = "free some space or choose another checkpoint.storage" if full else "remove the cause"
        said = str(error).rstrip(".") if isinstance(error, RLTrainError) else reason(error)
        said = f"{name}: {said}" if name else said
        return (
            f"The checkpoint of step {step} could not be written to {place or self.folder}: "
            f"{said}{free}. {self.untouched()}: {advice}, then resume."
        )

    def _untouched(self) -> str:
        earlier = [info.step for info in self.list()]
        return f"The checkpoint of step {earlier[-1]} is untouched" if earlier else "There is none before it"


class Draft(Closes):
    """A checkpoint that is being written: files in a folder that becomes one by `finish`, or is nothing once it is closed.

    Attributes:
        folder: where others may write files too.
    """

    def __init__(self, store: CheckpointStore, step: int, metadata: str):
        self._store, self._step, self._metadata = store, step, metadata
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(store.incoming(step))

    def write(self, writers: Mapping[str, Writer]) -> None:
        """Writes files; see `CheckpointStore.save`, also for what is raised."""
        for name in writers:
            if why := wrong_name(name):
                raise ValueError(f"{name!r} {why}")
        for name, writer in writers.items():
            with self._store.saying(self._step, name):
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if callable(writer):
                    writer(target)
                else:
                    target.write_bytes(writer)
                if not target.exists():
                    raise OSError(errno.ENOENT, "its writer wrote nothing")

    def finish(self, written: Digests) -> Checkpoint:
        """Makes it a checkpoint, and deletes older ones beyond the store's `keep`.

        Args:
            written: size and SHA-256 of files that other processes have written and that are on disk: only their sizes are
                looked at.

        Raises:
            CheckpointError: as `CheckpointStore.save`.
        """
        content = self.manifest(written)
        with self._store.saying(self._step, MANIFEST):
            (self.folder / MANIFEST).write_bytes(content)
            self._stack.close()  # publishes it
        self._store.prune(self._step)
        return read_manifest(self._store.path(self._step))

    def manifest(self, written: Digests, elsewhere: Collection[str] = ()) -> bytes:
        """The manifest of what is in its folder, and of those files of `written` that lie `elsewhere`; see `finish`."""
        with self._store.saying(self._step, MANIFEST):
            files = {name: settle(self.folder / name, written.get(name)) for name in files_in(self.folder)}
            files |= {name: written[name] for name in elsewhere}
            if missing := sorted(written.keys() - files.keys()):
                raise OSError(errno.ENOENT, f"{missing[0]}, which a learner wrote, is not there")
            return build_manifest(self._step, json.loads(self._metadata), files)

    def close(self) -> None:
        """Removes it, unless it is finished."""
        with contextlib.suppress(_GivenUp):
            self._stack.__exit__(_GivenUp, _GivenUp(), None)


class _GivenUp(Exception):
    """A checkpoint that was begun is not finished."""
