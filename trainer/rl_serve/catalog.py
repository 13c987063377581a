"""Which checkpoints a followed run has, for who chooses one of them; read only, and without a look into their files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.inspection import lineage
from rl_trainer.checkpoint.manifest import MANIFEST, Checkpoint, DamagedError, parse_manifest, step_name
from rl_trainer.checkpoint.remote import steps
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import RemoteFolder, is_s3

MOST: Final = 10
# A bucket that does not answer must not hold up who asks for the status.
_STALLED_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Listed:
    """One checkpoint; `source`: where it is, `digest`: its manifest's."""

    step: int
    digest: str
    source: str

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"step": self.step, "digest": self.digest, "source": self.source}


def checkpoints_of(folder: str) -> tuple[list[Listed], str]:
    """Checkpoints of a run's folder (checkpoints/ in it, or an s3:// folder that holds them), newest first, at most `MOST`.

    And a sentence, empty: all is well; else why there is none, or which are left out.
    """
    try:
        found = _remote(folder) if is_s3(folder) else _local(Path(folder))
    except CheckpointError as error:
        return [], str(error)
    except OSError as error:
        return [], f"{folder} cannot be read ({reason(error)})"
    if not found:
        where = folder if is_s3(folder) else f"{folder}/checkpoints"
        return [], f"{where}: there is no finished checkpoint yet"
    kept, problem = one_lineage([checkpoint for checkpoint, _ in found])
    sources = {checkpoint.digest: source for checkpoint, source in found}
    return [Listed(one.step, one.digest, sources[one.digest]) for one in kept][:MOST], problem


def one_lineage(found: Sequence[Checkpoint]) -> tuple[list[Checkpoint], str]:
    """Those of the newest one's run, as far as manifests tell: what must stay the same in a run is the same, and none is
    beside the parent that a newer one names. Newest first; and a sentence about the others, empty: there are none.
    """
    ordered = sorted(found, key=lambda one: one.step, reverse=True)
    kept = ordered[:1]
    for one in ordered[1:]:
        newest, child = kept[0], kept[-1]
        parent = lineage(child).get("parent")
        named = parent.get("digest") if isinstance(parent, dict) and parent.get("step") == one.step else None
        if one.metadata.get("fixed") == newest.metadata.get("fixed") and named in (None, one.digest):
            kept.append(one)
    left = sorted({one.step for one in ordered} - {one.step for one in kept})
    if not left:
        return kept, ""
    steps_left = ", ".join(map(str, left))
    return (
        kept,
        f"checkpoints of step {steps_left} are of another run than that of step {kept[0].step}; left out",
    )


def _local(folder: Path) -> list[tuple[Checkpoint, str]]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    store = CheckpointStore(folder / "checkpoints", read_only=True)
    return [(one, str(one.path)) for one in store.list()]


def _remote(uri: str) -> list[tuple[Checkpoint, str]]:
    remote = RemoteFolder(uri, stalled=_STALLED_SECONDS)

    def look() -> list[tuple[Checkpoint, str]]:
        found = []
        for step in steps(remote)[-MOST:]:
            content = remote.read(f"{step_name(step)}/{MANIFEST}")
            with contextlib.suppress(DamagedError):
                if content is not None:
                    found.append((parse_manifest(content, Path()), f"{remote.uri}/{step_name(step)}"))
        return found

    return remote.within(f"{uri} cannot be read", look)
