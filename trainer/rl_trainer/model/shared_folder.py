"""A model folder of the driver's node that actors on every node can open: its files travel through Ray's object store."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rl_api.errors import ModelError


@dataclass(frozen=True)
class SharedFolder:
    """A folder at `path` on `node`; `files`: names and contents (uint8 arrays), none where there is one node only."""

    path: Path
    node: str
    digest: str
    files: tuple[tuple[str, ray.ObjectRef[Any]], ...]

    def open(self) -> Path:
        """The folder on this node: the original, or a copy that is made by the first who asks.

        Raises:
            ModelError: the copy cannot be written.
        """
        if not self.files or ray.get_runtime_context().get_node_id() == self.node:
            return self.path
        copy = Path(tempfile.gettempdir()) / "rltrain-models" / self.digest
        if copy.is_dir():
            return copy
        half = copy.with_name(f".{self.digest}-{uuid.uuid4().hex}")
        try:
            half.mkdir(parents=True)
            for name, content in self.files:
                (half / name).parent.mkdir(parents=True, exist_ok=True)
                with (half / name).open("wb") as file:
                    file.write(memoryview(ray.get(content)))
            try:
                os.rename(half, copy)
            except OSError:
                if not copy.is_dir():  # else another actor of this node was faster
                    raise
        except OSError as error:
            raise ModelError(
                f"model folder {self.path}: its copy {copy} cannot be written ({error.strerror}); free some space there, or "
                "set TMPDIR on the nodes"
            ) from error
        finally:
            shutil.rmtree(half, ignore_errors=True)
        return copy


def share_folder(path: Path) -> SharedFolder:
    """Makes `path` open to all nodes of the Ray cluster; on a cluster of one node nothing is copied.

    The files stay in the object store as long as the returned object lives.

    Raises:
        ModelError: a file cannot be read.
    """
    node = ray.get_runtime_context().get_node_id()
    others = [one for one in ray.nodes() if one["Alive"] and one["NodeID"] != node]
    if not others:
        return SharedFolder(path, node, "", ())
    return put_folder(path, node)


def put_folder(path: Path, node: str) -> SharedFolder:
    """Puts every file below `path` into the object store. Raises ModelError when one cannot be read."""
    digest, files = hashlib.sha256(), []
    try:
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            name, size = file.relative_to(path).as_posix(), file.stat().st_size
            content = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
            digest.update(f"{name}\0{size}\0".encode())
            digest.update(memoryview(content))  # type: ignore[arg-type]
            files.append((name, ray.put(np.asarray(content))))
    except OSError as error:
        raise ModelError(
            f"model folder {path}: {error.filename} cannot be read ({error.strerror})"
        ) from error
    return SharedFolder(path, node, digest.hexdigest()[:32], tuple(files))
