"""Which policy is meant: from what the user named to a checked model folder, a name and a version."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_api.errors import CheckpointError, ModelError
from rl_trainer.checkpoint.manifest import MANIFEST, Checkpoint, DamagedError, sha256_of, verify
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.error_text import reason
from rl_trainer.model.export import WEIGHTS
from rl_trainer.model.resolve import check_folder, resolve_model
from rl_trainer.model.weight_files import weight_files

_DIGITS = 8
# Models below that many bytes are slower with several threads than with one.
_SMALL_BYTES = 80_000_000


@dataclass(frozen=True)
class Policy:
    """What is served.

    Attributes:
        folder: Hugging Face folder.
        name: the model's name for clients, where no other is given.
        version: which weights these are: step and digest of a checkpoint, or a digest of the weights.
        told: where it comes from, for people.
        digest: SHA-256 (hex) of the checkpoint's manifest, or over those of configuration and weights.
        step: of the checkpoint, 0: of none.
    """

    folder: Path
    name: str
    version: str
    told: str
    digest: str
    step: int = 0


def engine_threads(policy: Policy, replicas: int, cores: int | None = None) -> int:
    """CPU threads of each of `replicas` engines, which share `cores`; None: those of this machine."""
    size = sum(file.stat().st_size for file in policy.folder.glob("*.safetensors"))
    return 1 if size < _SMALL_BYTES else max(1, (cores or os.cpu_count() or 1) // replicas)


def find_policy(source: str, cache: Path, tell: Callable[[str], None] = lambda text: None) -> Policy:
    """The policy that `source` names: a run folder, a checkpoint, a model folder, a hub id, s3://..., or a preset.

    Every byte of a checkpoint is compared with its manifest. `tell` hears what takes long; downloads lie below `cache`.

    Raises:
        ModelError: there is no policy, or it cannot be loaded.
        CheckpointError: the checkpoint is damaged.
    """
    place = Path(source).expanduser()
    if place.is_dir():
        if (place / MANIFEST).is_file():
            return _of_checkpoint(_verified(place, tell), place.resolve().parent.parent.name)
        if (place / "config.json").is_file():
            return _of_folder(place, place.resolve().name, str(place), tell)[0]
        return _of_run(place, tell)
    if "://" not in source and place.parent.is_dir() and "/" in source:
        raise ModelError(f"{source}: there is no such folder")
    folder = resolve_model(source, cache, tell=tell, where="")
    return _of_folder(folder, source.rstrip("/").rpartition("://")[2], source, tell)[0]


def models_cache() -> Path:
    """Where models that are downloaded lie, for all commands that serve or compare."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rltrain" / "models"


def _of_run(run: Path, tell: Callable[[str], None]) -> Policy:
    """The final policy; while there is none, or training went on after it, that of the newest good checkpoint."""
    name, final, checkpoints = run.resolve().name, run / "final", run / "checkpoints"
    store = CheckpointStore(checkpoints, read_only=True)
    newest = max(store.list(), key=lambda one: one.step, default=None)
    if (final / "config.json").is_file() and not (newest and _is_newer(newest, final)):
        return _of_final(final, name, newest, tell)
    if newest:
        tell(f"verifying {newest.path}")
    found = store.load_latest()
    if found is None:
        raise ModelError(
            f"{run}: found no policy; allowed: a run folder with final or checkpoints, or a model folder with config.json"
        )
    for sentence in found.skipped:
        tell(sentence)
    return _of_checkpoint(found, name)


def _is_newer(checkpoint: Checkpoint, final: Path) -> bool:
    try:
        return (checkpoint.path / MANIFEST).stat().st_mtime > (final / "config.json").stat().st_mtime
    except OSError:
        return False


def _of_final(final: Path, run: str, newest: Checkpoint | None, tell: Callable[[str], None]) -> Policy:
    """It has no manifest of its own: where that of the last checkpoint says the same of the weights, it is that step."""
    policy, weights = _of_folder(final, run, str(final), tell)
    if newest is None:
        return policy
    _, expected = newest.files.get(f"model/{WEIGHTS}", (0, ""))
    if [expected] != weights:
        return policy
    return Policy(policy.folder, run, _version(newest), policy.told, newest.digest, newest.step)


def _verified(place: Path, tell: Callable[[str], None]) -> Checkpoint:
    tell(f"verifying {place}")
    try:
        return verify(place)
    except DamagedError as error:
        raise CheckpointError(f"{place}: {error}; take another checkpoint") from None


def _of_checkpoint(found: Checkpoint, run: str) -> Policy:
    folder = found.file("model")
    check_folder(folder)
    return Policy(folder, run, _version(found), str(found.path), found.digest, found.step)


def _version(found: Checkpoint) -> str:
    return f"step-{found.step}-{found.digest[:_DIGITS]}"


def _of_folder(folder: Path, name: str, told: str, tell: Callable[[str], None]) -> tuple[Policy, list[str]]:
    """A model folder, and the SHA-256 (hex) of each file of its weights: these are large, and read once."""
    check_folder(folder)
    tell(f"reading {told}")
    try:
        config = sha256_of(folder / "config.json")
        weights = [sha256_of(file) for file in weight_files(folder)]
    except OSError as error:
        raise ModelError(
            f"model folder {folder}: {error.filename} cannot be read ({reason(error)})"
        ) from None
    digest = hashlib.sha256("".join([config, *weights]).encode()).hexdigest()
    return Policy(folder, name, f"weights-{digest[:_DIGITS]}", told, digest), weights
