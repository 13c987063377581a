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
from pathlib import Path
from typing import Any

from rl_trainer.error_text import reason

MANIFEST = "manifest.json"
FORMAT = 1
# A second save of a step, finished, about to take the first one's place.
REPLACEMENT = ".new"

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class CheckpointInfo:
    """A finished checkpoint, as its manifest describes it.

    Attributes:
        step: training step it was taken after.
        path: its folder.
        created: Unix time in seconds.
        size: bytes of all its files, without the manifest.
        metadata: what `save` was given.
        files: relative path of every file -> (size in bytes, SHA-256 in hex).
        digest: SHA-256 of the manifest: two checkpoints with the same digest are the same.
    """

    step: int
    path: Path
    created: float
    size: int
    metadata: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    digest: str


class DamagedError(Exception):
    """A checkpoint folder is not what its manifest says; the text says how."""


def step_name(step: int) -> str:
    """Folder name of a step: `step-00000020`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step a folder name stands for, or None for any other name."""
    match = _STEP_FOLDER.fullmatch(name.removesuffix(REPLACEMENT))
    return int(match[1]) if match else None


def read_manifest(folder: Path) -> CheckpointInfo:
    """The description of a checkpoint folder, without a look at its files. Raises DamagedError."""
    try:
        return parse_manifest((folder / MANIFEST).read_bytes(), folder)
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST} cannot be read ({reason(error)})") from error


def parse_manifest(content: bytes, folder: Path) -> CheckpointInfo:
    """The description in a manifest's bytes, for a checkpoint in `folder`. Raises DamagedError."""
    try:
        manifest = json.loads(content)
        digest = manifest.pop("sha256")
        sound = digest == hashlib.sha256(_canonical(manifest)).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{MANIFEST} cannot be read") from None
    if not sound:
        raise DamagedError(f"{MANIFEST} does not match its checksum")
    if manifest["format"] != FORMAT:
        raise DamagedError(
            f"it has format {manifest['format']}, this version of rltrain reads format {FORMAT}"
        )
    files = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    return CheckpointInfo(
        step=manifest["step"],
        path=folder,
        created=manifest["created"],
        size=sum(size for size, _ in files.values()),
        metadata=manifest["metadata"],
        files=files,
        digest=digest,
    )


def verify(folder: Path) -> CheckpointInfo:
    """Check every byte of a folder against its manifest, sizes first: they are cheap. Raises DamagedError."""
    info = check_sizes(folder)
    for name, (_, expected) in info.files.items():
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise DamagedError(f"{name} cannot be read ({reason(error)})") from error
        if found != expected:
            raise DamagedError(f"{name} does not match its checksum")
    return info


def check_sizes(folder: Path) -> CheckpointInfo:
    """Check that every file is there with its size, without reading it. Raises DamagedError."""
    info = read_manifest(folder)
    if step_of(folder.name) not in (None, info.step):
        raise DamagedError(f"its manifest is of step {info.step}")
    for name, (size, _) in info.files.items():
        try:
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


def settle(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file, after making sure that it is on disk."""
    fsync(path)
    return path.stat().st_size, _sha256(path)


def _sha256(path: Path) -> str:
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
