"""Reading and writing Hugging Face model folders: safetensors, single or sharded, without the library."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from rl_api.errors import ModelError
from rl_trainer.model.config import read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Everything of a model folder that is not weights and that other tools need to open it.
CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights; ModelError when there are none, or one is missing."""
    index = folder / INDEX
    if index.is_file() and not (folder / WEIGHTS).is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"model folder {folder}: {INDEX} has no weight_map")
        files = [folder / name for name in sorted(set(weight_map.values()))]
        for file in files:
            if not file.is_file():
                raise ModelError(f"model folder {folder}: {file.name}, named in {INDEX}, is missing")
        return files
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if list(folder.glob("*.bin")):
        raise ModelError(
            f"model folder {folder}: weights are .bin files; convert them to {WEIGHTS} "
            "(the library's save_pretrained writes it)"
        )
    raise ModelError(f"model folder {folder}: {WEIGHTS} is missing (and no {INDEX} names other files)")


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a folder by name; ModelError when a file is missing, truncated or no safetensors file."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with _named(folder, file):
            tensors.update(load_file(file))
    return tensors


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights of a folder by name, without reading these; errors as of `read_tensors`."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with _named(folder, file), safe_open(file, framework="pt") as tensors:
            shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()})  # noqa: SIM118
    return shapes


@contextmanager
def _named(folder: Path, file: Path) -> Iterator[None]:
    """What reading `file` raises, as a sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ModelError(
            f"model folder {folder}: {file.name} ({file.stat().st_size} bytes) is truncated or no safetensors file "
            f"({error})"
        ) from None
    except OSError as error:
        raise ModelError(f"model folder {folder}: {file.name} cannot be read ({error})") from None


def write_folder(tensors: Mapping[str, torch.Tensor], source: Path, target: Path) -> None:
    """Write a model folder with these weights and `source`'s configuration and tokenizer; it appears complete
    or not at all.

    Raises OSError (disk full, no permission) after removing what was written so far; a `target` that was
    there before is replaced only once its successor is complete.
    """
    from safetensors.torch import save_file

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.mkdir()
        for name in (*CONFIG_FILES, *TOKENIZER_FILES):
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)
        _record_dtype(temporary / "config.json", tensors)
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(plain, temporary / WEIGHTS, metadata={"format": "pt"})
        publish(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def publish(temporary: Path, target: Path) -> None:
    """Flush every file of `temporary` and rename it to `target`, replacing what is there."""
    for file in temporary.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    if target.exists():
        old = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.old"
        target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _record_dtype(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Say in config.json what the weights are stored in: the library opens the folder in that dtype."""
    config = read_json(path)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
