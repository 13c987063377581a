"""What makes a folder a checkpoint: its manifest, with the size and SHA-256 of every file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from rl_api.errors import CheckpointError
from rl_api.status_fields import MOST
from rl_trainer.error_text import reason

MANIFEST = "manifest.json"
FORMAT = 1
# A second save of a step, finished, about to take the first one's place.
REPLACEMENT = ".new"

# More than any checkpoint has, and less than what would keep a reader busy.
_MOST_FILES = 100_000
_LONGEST_NAME = 512

_SHA256 = re.compile(r"[0-9a-f]{64}")
_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint, as its manifest describes it.

    Attributes:
        step: training step it was taken after.
        path: its folder.
        metadata: what `save` was given.
        files: relative path of every file -> (size in bytes, SHA-256 in hex).
        digest: SHA-256 of the manifest: two checkpoints with the same digest are the same.
        skipped: sentences about newer checkpoints that were damaged and passed over on loading this one.
        uri: of its folder in an object store, where files were left there.
        elsewhere: names of those, of which none is in `path`.
    """

    step: int
    path: Path
    metadata: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    digest: str
    skipped: tuple[str, ...] = ()
    uri: str = ""
    elsewhere: frozenset[str] = frozenset()

    def file(self, name: str) -> Path:
        """Path of a file or of a folder of files. Raises CheckpointError when there is none of this name."""
        if not any(known == name or known.startswith(f"{name}/") for known in self.files):
            raise CheckpointError(f"The checkpoint of step {self.step} has no file {name}.")
        return self.path / name

    def read(self, name: str) -> bytes:
        """Content of a file."""
        return self.file(name).read_bytes()


class DamagedError(Exception):
    """A checkpoint folder is not what its manifest says; the text says how."""


def step_name(step: int) -> str:
    """Folder name of a step: `step-00000020`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step a folder name stands for, or None for any other name."""
    match = _STEP_FOLDER.fullmatch(name.removesuffix(REPLACEMENT))
    return int(match[1]) if match else None


def read_manifest(folder: Path) -> Checkpoint:
    """The description of a checkpoint folder, without a look at its files. Raises DamagedError."""
    try:
        return parse_manifest((folder / MANIFEST).read_bytes(), folder)
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST} cannot be read ({reason(error)})") from error


def parse_manifest(content: bytes, folder: Path) -> Checkpoint:
    """The description in a manifest's bytes, for a checkpoint in `folder`. Raises DamagedError."""
    try:
        manifest = json.loads(content)
        digest = manifest.pop("sha256")
        sound = digest == hashlib.sha256(_canonical(manifest)).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{MANIFEST} cannot be read") from None
    if not sound:
        raise DamagedError(f"{MANIFEST} does not match its checksum")
    if manifest.get("format") != FORMAT:
        raise DamagedError(
            f"it has format {manifest.get('format')!r:.40}, this version of rltrain reads format {FORMAT}"
        )
    # Whoever can write the manifest has made the checksum, too: names become paths here, and sizes room on a disk.
    step, metadata, listed = manifest.get("step"), manifest.get("metadata"), manifest.get("files")
    if not _is_count(step) or not isinstance(metadata, dict) or not isinstance(listed, dict):
        raise DamagedError(f"{MANIFEST} is none of a checkpoint")
    if len(listed) > _MOST_FILES:
        raise DamagedError(f"{MANIFEST} names {len(listed):,} files, allowed: at most {_MOST_FILES:,}")
    files = {}
    for name, entry in listed.items():
        if why := wrong_name(name):
            raise DamagedError(f"{MANIFEST} names the file {name!r:.100}, which {why}")
        size, expected = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not _is_count(size) or not isinstance(expected, str) or not _SHA256.fullmatch(expected):
            raise DamagedError(f"{MANIFEST} has no size and SHA-256 of {name!r:.100}")
        files[name] = (size, expected)
    return Checkpoint(step, folder, metadata, files, digest)


def wrong_name(name: str) -> str:
    """Why a name is no path of a file inside a checkpoint, as the end of a sentence; empty: it is one."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or path.as_posix() != name or ".." in path.parts:
        return "is no plain path inside the checkpoint"
    if "\\" in name or not name.isprintable():
        return "holds a backslash or a control character"
    if len(name) > _LONGEST_NAME:
        return f"is longer than {_LONGEST_NAME} characters"
    return f"is that of the {MANIFEST} itself" if path.parts[0] == MANIFEST else ""


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def verify(folder: Path) -> Checkpoint:
    """Check every byte of a folder against its manifest, sizes first: they are cheap. Raises DamagedError."""
    info = check_sizes(folder)
    for name, (_, expected) in info.files.items():
        try:
            found = sha256_of(folder / name)
        except OSError as error:
            raise DamagedError(f"{name} cannot be read ({reason(error)})") from error
        if found != expected:
            raise DamagedError(f"{name} does not match its checksum")
    return info


def check_sizes(folder: Path) -> Checkpoint:
    """Check that every file is there with its size, without reading it. Raises DamagedError."""
    info = read_manifest(folder)
    if step_of(folder.name) not in (None, info.step):
        raise DamagedError(f"its manifest is of step {info.step}")
    root = folder.resolve()
    for name, (size, _) in info.files.items():
        try:
            if (folder / name).resolve() != root / name:
                raise DamagedError(f"{name} is a symbolic link, or in a folder that is one")
            found = (folder / name).stat().st_size
        except OSError:
            raise DamagedError(f"{name} is missing") from None
        if found != size:
            raise DamagedError(f"{name} has {found:,} bytes instead of {size:,}")
    return info


def build_manifest(step: int, metadata: Any, files: Mapping[str, tuple[int, str]]) -> bytes:
    """The manifest's bytes; `metadata` as JSON would read it back, `files`: path -> (size, SHA-256)."""
    manifest = {
        "format": FORMAT,
        "step": step,
        "created": time.time(),
        "metadata": metadata,
        "files": {name: {"size": size, "sha256": digest} for name, (size, digest) in files.items()},
    }
    manifest["sha256"] = hashlib.sha256(_canonical(manifest)).hexdigest()
    return json.dumps(manifest, indent=1).encode()


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def settle(path: Path, known: tuple[int, str] | None = None) -> tuple[int, str]:
    """Size and SHA-256 of a file, after making sure that it is on disk; both are `known` to who has seen to that already.

    Raises OSError; also where the file has another size than is known.
    """
    size = path.stat().st_size
    if known is not None:
        if known[0] != size:
            raise OSError(
                f"{path.name} has {size:,} bytes here instead of the {known[0]:,} that were written"
            )
        return known
    fsync(path)
    return size, sha256_of(path)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_in(folder: Path) -> list[str]:
    """Relative paths of all files in a folder but the manifest, sorted."""
    names = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise OSError(errno.EINVAL, "a checkpoint cannot hold a symbolic link", str(path))
        if path.is_file() and path != folder / MANIFEST:
            names.append(path.relative_to(folder).as_posix())
    return sorted(names)


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder: there its names are as safe as they can be.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)
