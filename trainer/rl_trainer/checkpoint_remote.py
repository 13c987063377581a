"""Copies of finished checkpoints in another place (s3://, file://...), for disks that end with their pod.

A remote checkpoint is complete when its manifest is there: the manifest is written last and deleted first.
The copy counts only after every file's size was read back; on the way back every byte is verified, as on a
local disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint_manifest import (
    MANIFEST,
    CheckpointInfo,
    DamagedError,
    parse_manifest,
    reason,
    step_name,
    step_of,
    verify,
)

if TYPE_CHECKING:
    from rl_trainer.checkpoint import Checkpoint, CheckpointStore

Result = TypeVar("Result")


def mirror(store: CheckpointStore, uri: str, *, timeout: float = 600.0) -> str:
    """Copy the newest checkpoint of `store` to `uri` and delete copies beyond the store's `keep`.

    A copy that is already there is left alone. Copies of later steps belong to a continuation that was given
    up and are deleted.

    Args:
        store: where the checkpoint is.
        uri: folder, for example s3://bucket/runs/arithmetic.
        timeout: seconds the whole copy may take.

    Returns:
        The URI of the copy.

    Raises:
        CheckpointError: there is nothing to copy, or it failed or took too long; the local checkpoint is
        untouched.
    """
    infos = store.list()
    if not infos:
        raise CheckpointError(f"There is no checkpoint in {store.folder} to copy to {uri}.")
    info = infos[-1]
    what = f"The checkpoint of step {info.step} could not be copied to {uri}"

    def copy() -> None:
        remote = _Remote(uri)
        if remote.digest(info.step) != info.digest:
            verify(info.path)  # a damaged checkpoint must not push good copies out
            remote.delete(info.step)
            remote.upload(info)
        kept = [info.step, *(step for step in reversed(remote.steps()) if step < info.step)][: store.keep]
        for step in remote.steps():
            if step not in kept:
                remote.delete(step)

    _within(timeout, copy, what, f"It is safe in {info.path}.")
    return f"{uri.rstrip('/')}/{step_name(info.step)}"


def fetch(store: CheckpointStore, uri: str, *, timeout: float = 600.0) -> Checkpoint | None:
    """Bring the newest good checkpoint of `uri` into `store`, verified; None when there is none at all.

    Args:
        store: where it goes. A good local copy of the same checkpoint is taken instead of downloading.
        uri: folder that `mirror` was given.
        timeout: seconds the whole download may take.

    Returns:
        The checkpoint, with sentences about damaged newer ones in `.skipped`.

    Raises:
        CheckpointError: nothing could be read, all copies are damaged, or it took too long.
    """
    from rl_trainer.checkpoint import Checkpoint

    skipped: list[str] = []

    def bring() -> CheckpointInfo | None:
        remote = _Remote(uri)
        for step in reversed(remote.steps()):
            try:
                digest = remote.digest(step)
                for info in store.list():
                    if info.step == step and info.digest == digest:
                        with contextlib.suppress(DamagedError):
                            return verify(info.path)
                with store.incoming(step) as folder:
                    remote.download(step, folder)
            except DamagedError as error:
                skipped.append(f"The copy of step {step} in {uri} was skipped: {error}.")
                continue
            return store.load(step).info
        return None

    info = _within(
        timeout, bring, f"No checkpoint could be read from {uri}", "Look at the place and its rights."
    )
    if info is None and skipped:
        raise CheckpointError(f"No checkpoint in {uri} can be used. {' '.join(skipped)}")
    return None if info is None else Checkpoint(info, tuple(skipped))


class _Remote:
    """Checkpoints under one fsspec URI."""

    def __init__(self, uri: str) -> None:
        import fsspec  # type: ignore[import-untyped]  # slow to import, and only needed here

        self.fs: Any
        self.fs, root = fsspec.core.url_to_fs(uri)
        self.root = root.rstrip("/")

    def steps(self) -> list[int]:
        """Steps that have a manifest, ascending."""
        self.fs.invalidate_cache()
        try:
            names = [path.rstrip("/").rsplit("/", 1)[-1] for path in self.fs.ls(self.root, detail=False)]
        except FileNotFoundError:
            return []
        steps = {step for name in names if (step := step_of(name)) is not None and name == step_name(step)}
        return sorted(step for step in steps if self.fs.exists(self._path(step, MANIFEST)))

    def digest(self, step: int) -> str | None:
        """Digest of a complete copy, None when there is none or its manifest is damaged."""
        try:
            content = self.fs.cat_file(self._path(step, MANIFEST))
            return parse_manifest(content, Path()).digest
        except (FileNotFoundError, DamagedError):
            return None

    def upload(self, info: CheckpointInfo) -> None:
        """Files first, the manifest when all of them are there in full."""
        for name, (size, _) in info.files.items():
            path = self._path(info.step, name)
            self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self.fs.put_file(str(info.path / name), path)
            self.fs.invalidate_cache()
            if (found := self.fs.size(path)) != size:
                raise OSError(f"{name} arrived with {found:,} bytes instead of {size:,}")
        self.fs.makedirs(self._path(info.step), exist_ok=True)
        self.fs.pipe_file(self._path(info.step, MANIFEST), (info.path / MANIFEST).read_bytes())

    def download(self, step: int, folder: Path) -> None:
        """All files of the manifest, and the manifest itself, into a local folder."""
        content = self.fs.cat_file(self._path(step, MANIFEST))
        for name in parse_manifest(content, folder).files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                self.fs.get_file(self._path(step, name), str(folder / name))
            except FileNotFoundError:
                raise DamagedError(f"{name} is missing") from None
        (folder / MANIFEST).write_bytes(content)

    def delete(self, step: int) -> None:
        """The manifest first: from there on the copy is none."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self._path(step, MANIFEST))
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self._path(step), recursive=True)

    def _path(self, step: int, name: str = "") -> str:
        return f"{self.root}/{step_name(step)}/{name}".rstrip("/")


def _within(timeout: float, work: Callable[[], Result], what: str, advice: str) -> Result:
    """Run `work` with a deadline; anything that goes wrong becomes a CheckpointError that begins with `what`.

    On a thread, since the libraries behind fsspec offer no deadline for a whole copy. One that never returns
    is left behind as
    a daemon: it holds a connection, not the run.
    """
    results: list[Result] = []
    failures: list[Exception] = []

    def body() -> None:
        try:
            results.append(work())
        except Exception as error:  # handed to the caller below
            failures.append(error)

    thread = threading.Thread(target=body, name="checkpoint-copy", daemon=True)
    thread.start()
    thread.join(timeout)
    if results:
        return results[0]
    if not failures:
        raise CheckpointError(f"{what}: it was not done after {timeout:g} s. {advice}")
    error = failures[0]
    if isinstance(error, CheckpointError):
        raise error
    if isinstance(error, ImportError):
        raise CheckpointError(f"{what}: {reason(error)}. Install rltrain[s3] for s3://.") from error
    raise CheckpointError(f"{what}: {reason(error)}. {advice}") from error
