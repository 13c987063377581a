"""Reading Hugging Face model folders: safetensors, single or sharded, without the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from rl_api.errors import ModelError
from rl_trainer.model.config import read_json
from rl_trainer.model.export import WEIGHTS
from rl_trainer.model.rows import Rows

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights; ModelError when there are none, or one is missing."""
    index = folder / INDEX
    if index.is_file() and not (folder / WEIGHTS).is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"model folder {folder}: {INDEX} has no weight_map")
        names = set(weight_map.values())
        if odd := [
            name for name in names if not isinstance(name, str) or Path(name).name != name or "\\" in name
        ]:
            raise ModelError(
                f"model folder {folder}: {INDEX} names {odd[0]!r:.100}, allowed: files beside it"
            )
        files = [folder / name for name in sorted(names)]
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
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with _named(folder, file):
            tensors.update(load_file(file))
    return tensors


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights of a folder by name, without reading these; errors as of `read_tensors`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with _named(folder, file), safe_open(file, framework="pt") as tensors:
            shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()})  # noqa: SIM118
    return shapes


class FileRows:
    """A tensor of an open safetensors file, of which the rows that are asked for are read."""

    def __init__(self, found: Any) -> None:
        self._slice = found
        self.shape = tuple(found.get_shape())

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        found: torch.Tensor = self._slice[rows]
        return found


class TensorFile(Mapping[str, Rows]):
    """The tensors of open safetensors files, whose rows are read when they are asked for."""

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Rows:
        file = self._files[name]
        found = file.get_slice(name)
        rows: Rows = FileRows(found) if found.get_shape() else file.get_tensor(name)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextmanager
def opened_tensors(folder: Path, name: str) -> Iterator[TensorFile]:
    """The file `name` of a folder, within the block; errors as of `read_tensors`."""
    with _named(folder, folder / name), safe_open(folder / name, framework="pt") as file:
        yield TensorFile([file])


@contextmanager
def opened_weights(folder: Path) -> Iterator[TensorFile]:
    """All weights of a folder, within the block; errors as of `read_tensors`."""
    with ExitStack() as stack:
        files = []
        for file in weight_files(folder):
            stack.enter_context(_named(folder, file))
            files.append(stack.enter_context(safe_open(file, framework="pt")))
        yield TensorFile(files)


@contextmanager
def _named(folder: Path, file: Path) -> Iterator[None]:
    """What reading `file` raises, as a sentence."""
    try:
        yield
    except SafetensorError as error:
        raise ModelError(
            f"model folder {folder}: {file.name} ({file.stat().st_size} bytes) is truncated or no safetensors file "
            f"({error})"
        ) from None
    except OSError as error:
        raise ModelError(f"model folder {folder}: {file.name} cannot be read ({error})") from None
