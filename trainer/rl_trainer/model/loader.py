"""From what the user wrote in `model.source` to a local Hugging Face folder, and from a folder to a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch

from rl_api.errors import ModelError
from rl_api.run import TinyModelSpec
from rl_trainer.model.config import UnsupportedModelError, read_config, read_json
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.download import copy_folder, download_from_hub
from rl_trainer.model.folder import weight_files
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.source import checked_sizes, place_of


def resolve_model(
    source: str,
    cache_folder: str | Path,
    tiny: TinyModelSpec | None = None,
    seed: int = 0,
    revision: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """Make `source` a checked local folder.

    `source` is the preset `tiny` (written below `cache_folder` from the sizes `tiny` and `seed`), a local
    folder, s3://bucket/folder (copied below `cache_folder`), or a Hugging Face hub
    id (the hub's own cache; HF_HUB_OFFLINE=1 uses what is there). `tell` hears now and then how far a long
    download has come. Raises ModelError with one sentence for everything that can go wrong.
    """
    cache, place = Path(cache_folder), place_of(source)
    if place == "preset":
        folder = _preset(cache, tiny or TinyModelSpec(), seed)
    elif place == "remote":
        folder = copy_folder(source, cache, tell)
    elif place == "folder":
        folder = Path(source).expanduser()
    else:
        folder = download_from_hub(source, revision, tell)
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
    """Open a folder for learning: our decoder, or for other families the library's model, which has the same methods."""
    try:
        return load_decoder(folder, dtype, device)
    except UnsupportedModelError:
        return LibraryModel.open(folder, dtype, device)


def empty_model(folder: str | Path) -> Decoder | LibraryModel:
    """The model of a folder whose parameters, fp32, have no memory yet: they are on torch's device `meta`.

    Raises ModelError as `load_model`, as far as that can be told without the weights.
    """
    try:
        return Decoder(read_config(folder), device="meta")
    except UnsupportedModelError:
        return LibraryModel.empty(folder)


def _preset(cache: Path, tiny: TinyModelSpec, seed: int) -> Path:
    sizes = checked_sizes(tiny)
    key = hashlib.sha256(json.dumps({**sizes, "seed": seed}, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / f"tiny-{key}"
    if not folder.is_dir():
        try:
            write_tiny(folder, tiny, seed)
        except OSError as error:
            if not folder.is_dir():  # else another process finished it in the meantime, which is as good
                raise ModelError(f"model folder {folder}: cannot be written ({error})") from None
    return folder
