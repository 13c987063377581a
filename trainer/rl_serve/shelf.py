"""Policies that were found to be what they are said to be, on the disk of the head: replicas are given these and no others.

A checkpoint is copied and checked on the way: training deletes older ones, and a replica that starts anew needs the one that
is served.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rl_api.errors import CheckpointError, Unavailable
from rl_serve.arguments import PolicyRef
from rl_serve.catalog import Listed
from rl_serve.policy import find_policy
from rl_trainer.checkpoint.manifest import (
    MANIFEST,
    Checkpoint,
    DamagedError,
    parse_manifest,
    sha256_of,
    verify,
)
from rl_trainer.error_text import reason
from rl_trainer.model.resolve import check_folder
from rl_trainer.storage.remote_folder import RemoteFolder, is_s3

# The one that serves, one that is to serve, and those before.
KEPT: Final = 4
_MODEL: Final = "model"


class Shelf:
    """Verified policies below `cache`, the newest `KEPT` that were asked for. Any thread may ask."""

    def __init__(self, cache: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self._cache, self._tell = cache, tell
        self._lock = threading.Lock()

    def folder(self, policy: PolicyRef) -> Path:
        """The model folder of `policy`, every byte of it as its manifest says.

        Raises:
            CheckpointError: it is damaged, or another one than its digest names.
            Unavailable: it is not there now, or cannot be copied.
            ModelError: it is no model that can be served.
        """
        with self._lock:  # whoever comes second finds what the first has brought
            if policy.digest is not None:
                kept = self._cache / "policies" / policy.digest
                if kept.is_dir():
                    os.utime(kept)
                    return kept / _MODEL
            source = policy.source
            place = Path(source).expanduser()
            if (place / MANIFEST).is_file():
                return self._copy(place, policy)
            if is_s3(source) and (content := _remote_manifest(source)) is not None:
                return self._download(source, content, policy)
            if policy.digest is not None and place.is_absolute() and not place.exists():
                raise Unavailable(
                    f"{source}: there is no such folder now; is its disk mounted, and was it deleted?"
                )
            found = find_policy(source, self._cache / "models", self._tell)
            _check(policy, found.digest)
            return found.folder

    def named(self, source: str) -> Listed:
        """The one policy that is at `source`: its step (0: none) and digest; every byte of it is read, or brought here.

        Raises:
            ModelError, CheckpointError: there is none, or it is damaged.
        """
        if is_s3(source) and (content := _remote_manifest(source)) is not None:
            try:
                found = parse_manifest(content, Path())
            except DamagedError as error:
                raise CheckpointError(f"{source}: {error}") from None
            return Listed(found.step, found.digest, source)
        policy = find_policy(source, self._cache / "models", self._tell)
        return Listed(policy.step, policy.digest, source)

    def _copy(self, place: Path, policy: PolicyRef) -> Path:
        try:
            found = verify(place)
        except DamagedError as error:
            raise CheckpointError(f"{place}: {error}") from None
        return self._bring(
            found, policy, (place / MANIFEST).read_bytes(), lambda name, to: shutil.copyfile(place / name, to)
        )

    def _download(self, uri: str, content: bytes, policy: PolicyRef) -> Path:
        try:
            found = parse_manifest(content, Path())
        except DamagedError as error:
            raise CheckpointError(f"{uri}: {error}") from None
        remote = RemoteFolder(uri)
        return remote.within(
            f"{uri} cannot be read",
            lambda: self._bring(found, policy, content, lambda name, to: remote.download(name, to)),
        )

    def _bring(
        self, found: Checkpoint, policy: PolicyRef, manifest: bytes, bring: Callable[[str, Path], object]
    ) -> Path:
        """The files of its model, each held against the manifest once it is here, and beside them the manifest."""
        _check(policy, found.digest)
        shelf = self._cache / "policies"
        half, whole = shelf / f".{uuid.uuid4().hex}", shelf / found.digest
        if whole.is_dir():  # asked for without a digest
            return whole / _MODEL
        try:
            half.mkdir(parents=True)
            (half / MANIFEST).write_bytes(manifest)
            for name, (size, expected) in found.files.items():
                if name.startswith(f"{_MODEL}/"):
                    target = half / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    bring(name, target)
                    if (target.stat().st_size, sha256_of(target)) != (size, expected):
                        raise CheckpointError(f"{policy.source}: {name} does not match its checksum")
            check_folder(half / _MODEL)
            self._make_room(shelf)
            os.rename(half, whole)
        except OSError as error:
            raise Unavailable(
                f"{policy.source} cannot be copied to {shelf} ({reason(error)}); is it still there, and is there enough "
                "space?"
            ) from None
        finally:
            shutil.rmtree(half, ignore_errors=True)
        return whole / _MODEL

    def _make_room(self, shelf: Path) -> None:
        """Forget those that were asked for the longest ago, and what a killed process left."""
        known = [one for one in shelf.iterdir() if not one.name.startswith(".")]
        for old in sorted(known, key=lambda one: one.stat().st_mtime, reverse=True)[KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        for left in shelf.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 3600:
                    shutil.rmtree(left, ignore_errors=True)


def _check(policy: PolicyRef, digest: str) -> None:
    if policy.digest is not None and digest != policy.digest:
        raise CheckpointError(
            f"{policy.source}: its digest is {digest}, and not {policy.digest}, which was asked for"
        )


def _remote_manifest(uri: str) -> bytes | None:
    remote = RemoteFolder(uri)
    return remote.within(f"{uri} cannot be read", lambda: remote.read(MANIFEST))
