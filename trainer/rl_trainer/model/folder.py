"""Hugging Face model folders: safetensors, single or sharded, read and written without the library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from rl_api.errors import ModelError
from rl_trainer.checkpoint.tensor_file import ROWS, Digests, ShardWriter, file_head
from rl_trainer.model.export import WEIGHTS, WEIGHTS_METADATA
from rl_trainer.model.rows import Rows
from rl_trainer.model.weight_files import weight_files
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.stream import byte_rounds, file_shapes


def write_weights(source: TensorSource, folder: Path) -> Digests:
    """Writes the tensors of a source as the one file of weights of a folder, a piece at a time.

    Raises CheckpointError when it cannot be written. What the source raises comes through.
    """
    with ShardWriter(folder, [file_head(WEIGHTS, file_shapes(source), WEIGHTS_METADATA)]) as writer:
        for pieces in byte_rounds(source, source.shapes):
            for _, data in pieces:
                writer.write(WEIGHTS, data)
        return writer.finish()


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


class DealtRows:
    """A tensor whose rows lie in several files; those that are asked for are read.

    `parts`: the first row of each part, and the part.
    """

    def __init__(self, parts: Sequence[tuple[int, Rows]], count: int) -> None:
        self._parts = sorted(parts, key=lambda part: part[0])
        self.shape = (count, *self._parts[0][1].shape[1:])

    @property
    def whole(self) -> bool:
        """Whether every row is in one of the files."""
        end = 0
        for first, part in self._parts:
            if first > end:
                return False
            end = max(end, first + part.shape[0])
        return end == int(self.shape[0])

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        start, stop, _ = rows.indices(self.shape[0])
        found = []
        for first, part in self._parts:
            last = min(stop, first + part.shape[0])
            if (begin := max(start, first)) < last:
                found.append(part[begin - first : last - first])
                start = last
        if not found:
            return self._parts[0][1][0:0]
        return torch.cat(found) if len(found) > 1 else found[0]


class TensorFile(Mapping[str, Rows]):
    """The tensors of open safetensors files, whose rows are read when they are asked for.

    Raises ValueError where rows of a tensor are in none of them.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        self._dealt: dict[str, DealtRows] = {}
        parts: dict[str, list[tuple[int, Rows]]] = {}
        counts: dict[str, int] = {}
        for file in files:
            for name, (first, count) in json.loads((file.metadata() or {}).get(ROWS, "{}")).items():
                parts.setdefault(name, []).append((first, FileRows(file.get_slice(name))))
                counts[name] = count
        for name, theirs in parts.items():
            self._dealt[name] = DealtRows(theirs, counts[name])
            if not self._dealt[name].whole:
                raise ValueError(f"some of the {counts[name]} rows of {name} are in none of the files")

    def __getitem__(self, name: str) -> Rows:
        if name in self._dealt:
            return self._dealt[name]
        file = self._files[name]
        found = file.get_slice(name)
        rows: Rows = FileRows(found) if found.get_shape() else file.get_tensor(name)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextmanager
def opened_tensors(folder: Path, names: Sequence[str]) -> Iterator[TensorFile]:
    """The tensors of files `names` of a folder, within the block; errors as of `read_tensors`."""
    with _opened(folder, [folder / name for name in names]) as tensors:
        yield tensors


@contextmanager
def opened_weights(folder: Path) -> Iterator[TensorFile]:
    """All weights of a folder, within the block; errors as of `read_tensors`."""
    with _opened(folder, weight_files(folder)) as tensors:
        yield tensors


@contextmanager
def _opened(folder: Path, names: Sequence[Path]) -> Iterator[TensorFile]:
    with ExitStack() as stack:
        files = []
        for file in names:
            stack.enter_context(_named(folder, file))
            files.append(stack.enter_context(safe_open(file, framework="pt")))
        try:
            tensors = TensorFile(files)
        except (
            ValueError,
            SafetensorError,
        ) as error:  # of the files together, or of what one says of its rows
            raise ModelError(f"folder {folder}: {', '.join(one.name for one in names)}: {error}") from None
        yield tensors


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
