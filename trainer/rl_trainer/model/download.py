"""Models from elsewhere: a folder in an object store, and the Hugging Face hub."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_api.errors import ModelError, ModelUnavailable
from rl_trainer.error_text import first_line
from rl_trainer.model.config import FIELD
from rl_trainer.model.export import CONFIG_FILES, TOKENIZER_FILES
from rl_trainer.storage.remote_folder import advice, filesystem_of, is_s3

Tell = Callable[[str], None]
_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_TELL_SECONDS = 5.0


class Progress:
    """Tells every few seconds how much of a download is there.

    Args:
        what: what is downloaded.
        tell: hears a phrase.
        total: bytes in all, 0: not known yet.
    """

    def __init__(
        self, what: str, tell: Tell, total: float = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._tell, self._clock = what, tell, clock
        self.done, self.total = 0.0, total
        self._told = clock()

    def add(self, count: float) -> None:
        """`count` more bytes are there."""
        self.done += count
        if self._clock() - self._told >= _TELL_SECONDS:
            self._told = self._clock()
            of = f" of {self.total / 1e9:.2f}" if self.total >= self.done else ""
            self._tell(f"downloading {self._what}: {self.done / 1e9:.2f}{of} GB")


def copy_folder(source: str, cache: Path, tell: Tell, where: str = FIELD) -> Path:
    """Copy a folder at s3://bucket/folder below the cache; copied once per URI and listing (names, sizes, times).

    Raises ModelError, which begins with `where`, when it cannot be copied, or is no model.
    """
    try:
        filesystem, root = filesystem_of(source)
    except ImportError as error:
        hint = "install rltrain[s3]" if is_s3(source) else str(error)
        raise ModelError(f"{where}{source} needs a package that is not installed; {hint}") from None
    except ValueError as error:
        raise ModelError(f"{where}{error}") from None
    try:
        entries = [entry for entry in filesystem.ls(root, detail=True) if entry["type"] == "file"]
    except FileNotFoundError:
        raise ModelError(f"{where}there is no folder at {source}") from None
    except Exception as error:  # each fsspec backend raises its own kinds
        raise ModelUnavailable(
            f"{where}{source} cannot be listed: {first_line(error)}. {advice(source)}"
        ) from None
    wanted = [entry for entry in entries if _is_model_file(Path(entry["name"]).name)]
    if not wanted:
        raise ModelError(f"{where}the folder at {source} holds no model files (config.json and safetensors)")
    listing = sorted((Path(entry["name"]).name, entry.get("size"), str(_stamp(entry))) for entry in wanted)
    key = hashlib.sha256(json.dumps([source, listing]).encode()).hexdigest()[:10]
    folder = cache / f"{re.sub(r'[^A-Za-z0-9]+', '-', source.split('://', 1)[1]).strip('-')[-40:]}-{key}"
    if folder.is_dir():
        return folder
    temporary = cache / f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.mkdir(parents=True)
        progress = Progress(source, tell, sum(entry.get("size") or 0 for entry in wanted))
        for entry in wanted:
            target = temporary / Path(entry["name"]).name
            filesystem.get_file(entry["name"], str(target), callback=_counted(progress))
        os.replace(temporary, folder)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise ModelUnavailable(
                f"{where}{source} cannot be copied: {first_line(error)}. {advice(source)}"
            ) from None
    return folder


def _is_model_file(name: str) -> bool:
    return (
        name in CONFIG_FILES
        or name in TOKENIZER_FILES
        or name.endswith((".safetensors", ".safetensors.index.json"))
    )


def _stamp(entry: dict[str, Any]) -> Any:
    return entry.get("ETag") or entry.get("mtime") or entry.get("LastModified") or entry.get("created")


def download_from_hub(source: str, revision: str | None, tell: Tell, where: str = FIELD) -> Path:
    """Download a hub model's needed files, or find them in the hub's cache; ModelError, which begins with `where`, when the
    hub does not give them."""
    from huggingface_hub import snapshot_download

    told = _told(Progress(source, tell))
    return _asked(
        source,
        revision,
        lambda: snapshot_download(source, revision=revision, allow_patterns=_PATTERNS, tqdm_class=told),
        where,
    )


def config_from_hub(source: str, revision: str | None, where: str = FIELD) -> Path:
    """The `config.json` of a hub model alone, downloaded or found in the hub's cache; errors as of `download_from_hub`."""
    from huggingface_hub import hf_hub_download

    return _asked(source, revision, lambda: hf_hub_download(source, "config.json", revision=revision), where)


def _asked(source: str, revision: str | None, ask: Callable[[], str], where: str) -> Path:
    """What the hub gives, or why it does not, as a ModelError."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    kind: type[ModelError] = ModelError
    try:
        return Path(ask())
    except GatedRepoError:
        reason = "its owner must grant access first (accept its licence on the hub and set HF_TOKEN)"
    except RevisionNotFoundError:
        reason = f"it has no revision {revision!r}"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private (set HF_TOKEN); a local folder must exist"
    except LocalEntryNotFoundError:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        kind = ModelError if offline else ModelUnavailable
        reason = (
            "it is not in the local cache, and HF_HUB_OFFLINE is set"
            if offline
            else "the hub cannot be reached and the local cache lacks it; check the network or give a local folder"
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason, kind = first_line(error), ModelUnavailable
    raise kind(f"{where}hub model {source} cannot be loaded: {reason}")


def _counted(progress: Progress) -> Any:
    """What fsspec calls with the bytes of a file."""
    from fsspec.callbacks import Callback

    class Counted(Callback):  # type: ignore[misc, unused-ignore]
        def relative_update(self, inc: int = 1) -> None:
            progress.add(inc)

    return Counted()


def _told(progress: Progress) -> type:
    """What the hub's library takes for the class of its progress bars: ours draw nothing."""
    from tqdm import tqdm

    class Told(tqdm):  # type: ignore[type-arg, unused-ignore, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            # Of its three bars the first counts files, and the last what has reached the disk.
            if self.unit == "B" and not str(self.desc).startswith("Downloading"):
                progress.total = float(self.total or 0)
                progress.add(n or 0)
            return super().update(n)  # type: ignore[no-any-return]

    return Told
