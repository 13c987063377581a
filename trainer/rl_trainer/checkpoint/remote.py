"""Copies of finished checkpoints in another place (s3://, file://...), for disks that end with their pod.

A remote checkpoint is complete when its manifest is there: the manifest is written last and deleted first.
The copy counts only after every file's size was read back; on the way back every byte is verified, as on a
local disk.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.manifest import (
    MANIFEST,
    Checkpoint,
    DamagedError,
    fsync,
    parse_manifest,
    read_manifest,
    sha256_of,
    step_name,
    step_of,
    verify,
)
from rl_trainer.checkpoint.pins import RemotePins, pinned
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.storage.remote_folder import ChangedError, RemoteFolder


def mirror(store: CheckpointStore, remote: RemoteFolder, check: Callable[[], None] = lambda: None) -> str:
    """Copy the newest checkpoint of `store` and delete copies beyond the store's `keep`.

    A copy that is already there is left alone, those that services have pinned there stay. Copies of later steps belong to a
    continuation that was given up and are deleted.

    Args:
        check: called before anything changes there, before the copy counts and before each one that is deleted; may raise.

    Returns:
        The URI of the copy.

    Raises:
        CheckpointError: there is nothing to copy, or it failed or took too long; the local checkpoint is
        untouched.
    """
    infos = store.list()
    if not infos:
        raise CheckpointError(f"There is no checkpoint in {store.folder} to copy to {remote.uri}.")
    info = infos[-1]

    def copy() -> None:
        check()
        if _digest(remote, info.step) != info.digest:
            verify(info.path)  # a damaged checkpoint must not push good copies out
            check()  # that took its time
            delete(remote, info.step)
            for name in info.files:
                remote.upload(info.path / name, f"{step_name(info.step)}/{name}")
            check()
            remote.write(_manifest(info.step), (info.path / MANIFEST).read_bytes())
        _prune(store, remote, info.step, check)

    what = f"The checkpoint of step {info.step} could not be copied to {remote.uri}"
    remote.within(what, copy, f"It is safe in {info.path}.")
    return f"{remote.uri}/{step_name(info.step)}"


def complete(
    store: CheckpointStore,
    remote: RemoteFolder,
    folder: Path,
    content: bytes,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Make a checkpoint there of files that learners have uploaded and the others of its manifest, which are in `folder`.

    Args:
        content: the manifest.
        check: as of `mirror`, as is what happens to other checkpoints there.

    Returns:
        Its URI.

    Raises:
        CheckpointError: it failed or took too long: then there is no such checkpoint, and the one before is untouched.
    """
    info = parse_manifest(content, folder)
    name = step_name(info.step)

    def work() -> None:
        check()
        for file, (size, _) in info.files.items():
            if (folder / file).is_file():
                remote.upload(folder / file, f"{name}/{file}")
            elif (found := remote.size(f"{name}/{file}")) != size:
                raise OSError(f"{file} has {found:,} bytes there instead of the {size:,} that were written")
        check()
        remote.write(_manifest(info.step), content)
        _prune(store, remote, info.step, check)

    remote.within(
        f"The checkpoint of step {info.step} could not be completed in {remote.uri}",
        work,
        "The one before is untouched.",
    )
    return f"{remote.uri}/{name}"


def clear(remote: RemoteFolder, step: int) -> None:
    """Deletes what there is of a step, parts of its files included. Within `RemoteFolder.within`."""
    delete(remote, step)
    remote.abort_parts(step_name(step))


def sweep(remote: RemoteFolder, check: Callable[[], None] = lambda: None) -> None:
    """Deletes what killed writers have left, which is no checkpoint. Within `RemoteFolder.within`; nobody else may write.

    `check`: called before each that is deleted; may raise.
    """
    whole = {step_name(step) for step in steps(remote)}
    for name in remote.names():
        if step_of(name) is not None and name not in whole:
            check()
            remote.delete(name)
    check()
    # Other runs may keep theirs in folders of this one.
    remote.abort_parts("", lambda name: step_of(name.partition("/")[0]) is not None)


def _prune(store: CheckpointStore, remote: RemoteFolder, newest: int, check: Callable[[], None]) -> None:
    """Deletes copies beyond the store's `keep` beside the newest, and of later steps, but for those that are pinned."""
    there = steps(remote)
    kept = [newest, *(step for step in reversed(there) if step < newest)][: store.keep]
    gone = [step for step in there if step not in kept and not (step in store.held and step < newest)]
    needed = pinned(RemotePins(remote), time.time(), store.tell) if gone else frozenset()
    steps_needed = {step for step, _ in needed if step < newest}
    for step in gone:
        if step not in steps_needed or (step, _digest(remote, step)) not in needed:
            check()  # a later attempt may have made it
            delete(remote, step)


def fetch(store: CheckpointStore, remote: RemoteFolder) -> Checkpoint | None:
    """Bring the newest good checkpoint of `remote` into `store`, verified; None when there is none at all.

    A good local copy of the same checkpoint is taken instead of downloading. Sentences about damaged newer ones are in
    the checkpoint's `skipped`.

    Raises:
        CheckpointError: nothing could be read, all copies are damaged, or it took too long.
    """
    skipped: list[str] = []

    def bring() -> Checkpoint | None:
        for step in reversed(steps(remote)):
            try:
                digest = _digest(remote, step)
                for found in store.list():
                    if found.step == step and found.digest == digest:
                        with contextlib.suppress(DamagedError):
                            return verify(found.path)
                with store.incoming(step) as folder:
                    return replace(_download(remote, step, folder), path=store.folder / step_name(step))
            except DamagedError as error:
                skipped.append(f"The copy of step {step} in {remote.uri} was skipped: {error}.")
        return None

    found = remote.within(f"No checkpoint could be read from {remote.uri}", bring)
    if found is None and skipped:
        raise CheckpointError(f"No checkpoint in {remote.uri} can be used. {' '.join(skipped)}")
    return None if found is None else replace(found, skipped=tuple(skipped))


def survey(
    remote: RemoteFolder,
    folder: Path,
    left: Callable[[str], bool],
    *,
    before: int | None = None,
    passed: str = "",
) -> Checkpoint | None:
    """The newest checkpoint there, but for its large files, which stay: whoever needs them fetches them (`look_at`).

    Args:
        remote: where it is.
        folder: where its other files are put, made anew; they are verified.
        left: whether a file stays, by its name.
        before: only earlier steps are looked at.
        passed: a sentence on what has been passed over already.

    Returns:
        None when there is none at all. Sentences on damaged newer ones are in the checkpoint's `skipped`.

    Raises:
        CheckpointError: as `fetch`.
    """
    skipped: list[str] = []

    def bring() -> Checkpoint | None:
        for step in reversed(steps(remote)):
            if before is not None and step >= before:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                return _download(remote, step, folder, left)
            except DamagedError as error:
                skipped.append(f"The copy of step {step} in {remote.uri} was skipped: {error}.")
        return None

    found = remote.within(f"No checkpoint could be read from {remote.uri}", bring)
    if found is None and (sentences := " ".join(filter(None, (passed, *skipped)))):
        raise CheckpointError(f"No checkpoint in {remote.uri} can be used. {sentences}")
    if found is None:
        return None
    uri = f"{remote.uri}/{step_name(found.step)}"
    return replace(found, skipped=tuple(skipped), uri=uri, elsewhere=frozenset(filter(left, found.files)))


def look_at(uri: str, files: Digests) -> tuple[str, str]:
    """Whether files of a checkpoint there are what its manifest says; nothing of them is kept.

    Args:
        uri: of the checkpoint.
        files: size and SHA-256 by name.

    Returns:
        Why they cannot be read, and what is wrong with one; empty: nothing.
    """
    remote = RemoteFolder(uri)

    def look() -> str:
        for name, (size, digest) in files.items():
            try:
                if (there := remote.size(name)) != size:
                    return f"{name} has {there:,} bytes instead of {size:,}"
                if remote.sha256(name) != digest:
                    return f"{name} does not match its checksum"
            except FileNotFoundError:
                return f"{name} is missing"
            except ChangedError as error:
                return str(error)
        return ""

    try:
        return "", remote.within(f"{uri} cannot be read", look)
    except CheckpointError as error:
        return str(error), ""


def steps(remote: RemoteFolder) -> list[int]:
    """Steps that have a manifest, ascending."""
    found = {
        step for name in remote.names() if (step := step_of(name)) is not None and name == step_name(step)
    }
    return sorted(step for step in found if remote.exists(_manifest(step)))


def delete(remote: RemoteFolder, step: int) -> None:
    """The manifest first: from there on the copy is none."""
    remote.delete(_manifest(step))
    remote.delete(step_name(step))


def _digest(remote: RemoteFolder, step: int) -> str | None:
    """Digest of a complete copy, None when there is none or its manifest is damaged."""
    try:
        content = remote.read(_manifest(step))
        return None if content is None else parse_manifest(content, Path()).digest
    except (ChangedError, DamagedError):
        return None


def _download(
    remote: RemoteFolder, step: int, folder: Path, left: Callable[[str], bool] = lambda name: False
) -> Checkpoint:
    """All files of the manifest but those that are `left`, and the manifest itself, into a local folder, verified and on
    disk; of those that are left sizes are looked at. Raises DamagedError."""
    try:
        content = remote.read(_manifest(step))
    except ChangedError:
        raise DamagedError(f"{MANIFEST} does not match its checksum") from None
    if content is None:
        raise DamagedError(f"{MANIFEST} is missing")
    (folder / MANIFEST).write_bytes(content)
    found = read_manifest(folder)
    if found.step != step:
        raise DamagedError(f"its manifest is not of step {step}")
    for name, (size, digest) in found.files.items():
        try:
            there = remote.size(f"{step_name(step)}/{name}")
            if there != size:  # before it fills our disk
                raise DamagedError(f"{name} has {there:,} bytes instead of {size:,}")
            if left(name):
                continue
            remote.download(f"{step_name(step)}/{name}", folder / name)
        except FileNotFoundError:
            raise DamagedError(f"{name} is missing") from None
        except ChangedError:
            raise DamagedError(f"{name} does not match its checksum") from None
        fsync(folder / name)
        if sha256_of(folder / name) != digest:
            raise DamagedError(f"{name} does not match its checksum")
    return found


def _manifest(step: int) -> str:
    return f"{step_name(step)}/{MANIFEST}"
