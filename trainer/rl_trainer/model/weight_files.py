"""Which files of a model folder hold the weights; without torch."""

from __future__ import annotations

from pathlib import Path

from rl_api.errors import ModelError
from rl_trainer.model.config import read_json
from rl_trainer.model.export import INDEX, WEIGHTS


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
