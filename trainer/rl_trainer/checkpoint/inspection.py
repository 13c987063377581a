"""Whether a checkpoint is what its manifest says, and where it comes from: for who was given it, without the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rl_api.errors import CheckpointError
from rl_api.printable import printable
from rl_trainer.checkpoint.manifest import (
    MANIFEST,
    Checkpoint,
    DamagedError,
    parse_manifest,
    read_manifest,
    sha256_of,
    step_name,
    step_of,
)
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import RemoteFolder

NOT_RECORDED: Final = "not recorded"
_MOST_PROBLEMS: Final = 20
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Inspection:
    """What was found: `problems` are sentences, none where every file is as it was written."""

    place: str
    checkpoint: Checkpoint
    problems: tuple[str, ...]


def inspect_folder(folder: Path) -> Inspection:
    """Reads every byte of a checkpoint folder. Raises CheckpointError where there is none."""
    try:
        found = read_manifest(folder)
    except DamagedError as error:
        raise CheckpointError(f"{folder}: {error}{_hint(folder)}") from None
    there: dict[str, int | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            there[name] = None
        elif not path.is_dir():
            there[name] = path.stat().st_size if path.is_file() else None
    problems = differences(found, folder.name, there, lambda name: sha256_of(folder / name))
    problems += _parent_problems(folder.parent, lineage(found).get("parent"), found.step)
    return Inspection(str(folder), found, tuple(problems))


def inspect_remote(remote: RemoteFolder) -> Inspection:
    """The same of s3://bucket/.../step-N. Raises CheckpointError where there is none, or it cannot be read."""

    def look() -> Inspection:
        content = remote.read(MANIFEST)
        if content is None:
            raise CheckpointError(
                f"{remote.uri}: {MANIFEST} is missing; name the folder of one checkpoint, such as step-00000020"
            )
        try:
            found = parse_manifest(content, Path())
        except DamagedError as error:
            raise CheckpointError(f"{remote.uri}: {error}") from None
        problems = differences(found, remote.uri.rpartition("/")[2], remote.sizes(), remote.sha256)
        return Inspection(remote.uri, found, tuple(problems))

    return remote.within(f"{remote.uri} cannot be read", look)


def differences(
    found: Checkpoint, folder: str, there: Mapping[str, int | None], sha256: Callable[[str], str]
) -> list[str]:
    """What is not as the manifest says, in sentences.

    Args:
        folder: name of the checkpoint's folder.
        there: size of everything in it, by name; None: a link, or no file.
        sha256: of a file, by name.
    """
    problems = []
    if step_of(folder) not in (None, found.step):
        problems.append(f"the folder is named {folder}, the manifest is of step {found.step}")
    for name, (size, expected) in found.files.items():
        if name not in there:
            problems.append(f"{name} is missing")
        elif there[name] is None:
            problems.append(f"{name} is a link, or no file")
        elif there[name] != size:
            problems.append(f"{name} has {there[name]:,} bytes instead of {size:,}")
        else:
            try:
                if sha256(name) != expected:
                    problems.append(f"{name} was changed: its SHA-256 is another")
            except Exception as error:  # each store raises its own kinds
                problems.append(f"{name} cannot be read ({reason(error)})")
    problems += [
        f"{name} is not of the checkpoint" for name in sorted(there.keys() - found.files.keys() - {MANIFEST})
    ]
    return problems


def lineage(found: Checkpoint) -> Mapping[str, Any]:
    """What the manifest says about where the checkpoint comes from; empty in one of an earlier version."""
    said = found.metadata.get("lineage")
    return said if isinstance(said, dict) else {}


def table(inspection: Inspection) -> list[tuple[str, str]]:
    """(label, text) of everything that is known, for people."""
    found, said = inspection.checkpoint, lineage(inspection.checkpoint)
    total = sum(size for size, _ in found.files.values())
    facts: dict[str, object] = {
        "checkpoint": inspection.place,
        "step": found.step,
        "files": f"{len(found.files):,}, {total:,} bytes",
        "digest": found.digest,
        "spec": said.get("spec", NOT_RECORDED),
        "data": said.get("data", NOT_RECORDED),
        "parent": _parent(said),
        "code": said.get("code", NOT_RECORDED),
        "rewards": _rewards(said),
    }
    return [(label, printable(value, _LONGEST)) for label, value in facts.items()]


def told(problems: tuple[str, ...]) -> list[str]:
    """The problems as they may be shown, not more than a person reads."""
    more = len(problems) - _MOST_PROBLEMS
    shown = [printable(one, _LONGEST) for one in problems[:_MOST_PROBLEMS]]
    return [*shown, f"and {more:,} more"] if more > 0 else shown


def _parent(said: Mapping[str, Any]) -> str:
    if "parent" not in said:
        return NOT_RECORDED
    parent = said["parent"]
    if not isinstance(parent, dict):
        return "none, it is the first of its run"
    return f"step {parent.get('step')}, {parent.get('digest')}"


def _rewards(said: Mapping[str, Any]) -> str:
    if not isinstance(said.get("rewards"), dict):
        return NOT_RECORDED
    modules = [f"{name} {digest or 'without source'}" for name, digest in said["rewards"].items()]
    return ", ".join(modules) or "no code of the user's"


def _parent_problems(store: Path, parent: Any, own: int) -> list[str]:
    """What is wrong with the parent, where it is still beside its child. One of the same step was replaced by it."""
    step = parent.get("step") if isinstance(parent, dict) else None
    if not isinstance(step, int) or not 0 <= step < own:
        return []
    beside = store / step_name(step)
    if not (beside / MANIFEST).is_file():
        return []
    try:
        digest = read_manifest(beside).digest
    except DamagedError as error:
        return [f"{beside.name} beside it, its parent, cannot be read: {error}"]
    if digest == parent.get("digest"):
        return []
    return [f"{beside.name} beside it is not its parent: its digest is {digest}, not {parent.get('digest')}"]


def _hint(folder: Path) -> str:
    if not folder.is_dir():
        return "; there is no such folder"
    steps = sorted(path.name for inner in (folder, folder / "checkpoints") for path in inner.glob("step-*"))
    return f"; name the folder of one checkpoint, such as {steps[-1]}" if steps else ""
