"""From what the user wrote in `model.source` to a local Hugging Face folder, and from a folder to a model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_api.errors import ModelError
from rl_trainer.model.config import UnsupportedModelError, read_config, read_json
from rl_trainer.model.folder import CONFIG_FILES, TOKENIZER_FILES, weight_files
from rl_trainer.model.presets import DefaultTiny, TinyShape, write_tiny

if TYPE_CHECKING:
    from rl_trainer.model.decoder import Decoder
    from rl_trainer.model.library_model import LibraryModel

PRESETS = ("tiny",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_EXTRAS = {"s3": "s3", "s3a": "s3"}


def resolve_model(
    source: str,
    cache_folder: str | Path,
    tiny: TinyShape | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> Path:
    """Make `source` a checked local folder.

    `source` is the preset `tiny` (written below `cache_folder` from the sizes `tiny` and `seed`), a local
    folder, a URI that fsspec opens (s3://..., file://...; copied below `cache_folder`), or a Hugging Face hub
    id (the hub's own cache; HF_HUB_OFFLINE=1 uses what is there). Raises ModelError with one sentence for
    everything that can go wrong.
    """
    cache = Path(cache_folder)
    if source in PRESETS:
        folder = _preset(cache, tiny or DefaultTiny(), seed)
    elif "://" in source:
        folder = _remote(source, cache)
    elif Path(source).expanduser().is_dir():
        folder = Path(source).expanduser()
    elif _looks_local(source):
        raise ModelError(
            f"model.source: {source} is not a folder; give a preset ({', '.join(PRESETS)}), a local folder, "
            "a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or s3://..."
        )
    else:
        folder = _hub(source, revision)
    check_folder(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Cheap checks that a folder holds a model and a tokenizer; ModelError names the file that does not fit.

    Tensors are read and compared with the configuration when the model is loaded.
    """
    read_json(folder / "config.json")
    weight_files(folder)
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if not any((folder / name).is_file() for name in tokenizers):
        raise ModelError(
            f"model folder {folder}: tokenizer.json is missing; save the tokenizer beside the model"
        )


def load_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Decoder | LibraryModel:
    """Open a folder for learning or sampling: our decoder, or the library's model for other families.

    Both have `forward(input_ids, attention_mask)`, `hidden`, `lm_head`, `hf_state_dict`,
    `load_hf_state_dict`.
    """
    try:
        read_config(folder)
    except UnsupportedModelError:
        from rl_trainer.model.library_model import LibraryModel

        return LibraryModel.open(folder, dtype=dtype, device=device)
    from rl_trainer.model.decoder import load_decoder

    return load_decoder(folder, dtype=dtype, device=device)


def save_model(model: nn.Module, source_folder: str | Path, target_folder: str | Path) -> None:
    """Write a model from `load_model` as a Hugging Face folder, atomically; see `folder.write_folder`."""
    from rl_trainer.model.folder import write_folder

    write_folder(model.hf_state_dict(), Path(source_folder), Path(target_folder))  # type: ignore[operator]


def _looks_local(source: str) -> bool:
    """Whether a person who wrote this meant a path and not a hub id."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or not _HUB_ID.fullmatch(source)


def _preset(cache: Path, tiny: TinyShape, seed: int) -> Path:
    sizes = {name: int(getattr(tiny, name)) for name in vars(DefaultTiny())}
    if sizes["hidden_size"] % sizes["heads"] or (sizes["hidden_size"] // sizes["heads"]) % 2:
        raise ModelError(
            f"model.tiny: hiddenSize {sizes['hidden_size']} over heads {sizes['heads']} gives no even head size"
        )
    if sizes["heads"] % sizes["kv_heads"]:
        raise ModelError(
            f"model.tiny: heads {sizes['heads']} is not a multiple of kvHeads {sizes['kv_heads']}"
        )
    key = hashlib.sha256(json.dumps({**sizes, "seed": seed}, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / f"tiny-{key}"
    if not folder.is_dir():
        _write(folder, lambda target: write_tiny(target, tiny, seed))
    return folder


def _write(folder: Path, write: Any) -> None:
    """Run `write(folder)`; a folder that another process finished in the meantime is as good as ours."""
    try:
        write(folder)
    except OSError as error:
        if not folder.is_dir():
            raise ModelError(f"model folder {folder}: cannot be written ({error})") from None


def _remote(source: str, cache: Path) -> Path:
    """Copy a folder at a URI below the cache; copied once per URI and listing (names, sizes, times)."""
    import fsspec

    scheme = source.split("://", 1)[0]
    try:
        filesystem, root = fsspec.core.url_to_fs(source)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        hint = f"install rltrain[{extra}]" if extra else str(error)
        raise ModelError(f"model.source: {source} needs a package that is not installed; {hint}") from None
    except ValueError as error:
        raise ModelError(f"model.source: {source} cannot be opened ({error})") from None
    try:
        entries = [entry for entry in filesystem.ls(root, detail=True) if entry["type"] == "file"]
    except FileNotFoundError:
        raise ModelError(f"model.source: there is no folder at {source}") from None
    except Exception as error:  # each fsspec backend raises its own kinds
        raise ModelError(f"model.source: {source} cannot be listed ({_first_line(error)})") from None
    wanted = [entry for entry in entries if _is_model_file(Path(entry["name"]).name)]
    if not wanted:
        raise ModelError(
            f"model.source: the folder at {source} holds no model files (config.json and safetensors)"
        )
    listing = sorted((Path(entry["name"]).name, entry.get("size"), str(_stamp(entry))) for entry in wanted)
    key = hashlib.sha256(json.dumps([source, listing]).encode()).hexdigest()[:10]
    folder = cache / f"{re.sub(r'[^A-Za-z0-9]+', '-', source.split('://', 1)[1]).strip('-')[-40:]}-{key}"
    if folder.is_dir():
        return folder
    temporary = cache / f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.mkdir(parents=True)
        for entry in wanted:
            filesystem.get_file(entry["name"], str(temporary / Path(entry["name"]).name))
        os.replace(temporary, folder)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise ModelError(f"model.source: {source} cannot be copied ({_first_line(error)})") from None
    return folder


def _is_model_file(name: str) -> bool:
    return (
        name in CONFIG_FILES
        or name in TOKENIZER_FILES
        or name.endswith((".safetensors", ".safetensors.index.json"))
    )


def _stamp(entry: dict[str, Any]) -> Any:
    return entry.get("ETag") or entry.get("mtime") or entry.get("LastModified") or entry.get("created")


def _hub(source: str, revision: str | None) -> Path:
    """Download a hub model's needed files, or find them in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(_PATTERNS)))
    except GatedRepoError:
        reason = "its owner must grant access first (accept its licence on the hub and set HF_TOKEN)"
    except RevisionNotFoundError:
        reason = f"it has no revision {revision!r}"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private (set HF_TOKEN); a local folder must exist"
    except LocalEntryNotFoundError:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = (
            "it is not in the local cache, and HF_HUB_OFFLINE is set"
            if offline
            else "the hub cannot be reached and the local cache lacks it; check the network or give a local folder"
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = _first_line(error)
    raise ModelError(f"model.source: hub model {source} cannot be loaded: {reason}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
