"""From what the user wrote in `model.source` to a local Hugging Face folder; without torch, so that the driver can."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rl_api.errors import ModelError
from rl_api.run import TinyModelSpec
from rl_trainer.model.config import FIELD, read_json
from rl_trainer.model.download import copy_folder, download_from_hub
from rl_trainer.model.source import checked_sizes, place_of
from rl_trainer.model.weight_files import weight_files

# To import torch and write a model of some megabytes.
_WRITE_SECONDS = 300.0


def resolve_model(
    source: str,
    cache_folder: str | Path,
    tiny: TinyModelSpec | None = None,
    seed: int = 0,
    revision: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
    where: str = FIELD,
) -> Path:
    """Make `source` a checked local folder.

    `source` is the preset `tiny` (written below `cache_folder` from the sizes `tiny` and `seed`), a local
    folder, s3://bucket/folder (copied below `cache_folder`), or a Hugging Face hub
    id (the hub's own cache; HF_HUB_OFFLINE=1 uses what is there). `tell` hears now and then how far a long
    download has come. `where` names the field that holds `source`, and begins the sentences about it. Raises
    ModelError with one sentence for everything that can go wrong.
    """
    cache, place = Path(cache_folder), place_of(source, where)
    if place == "preset":
        folder = _preset(cache, tiny or TinyModelSpec(), seed)
    elif place == "remote":
        folder = copy_folder(source, cache, tell, where)
    elif place == "folder":
        folder = Path(source).expanduser()
    else:
        folder = download_from_hub(source, revision, tell, where)
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


def _preset(cache: Path, tiny: TinyModelSpec, seed: int) -> Path:
    sizes = checked_sizes(tiny)
    key = hashlib.sha256(json.dumps({**sizes, "seed": seed}, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / f"tiny-{key}"
    if not folder.is_dir():
        try:
            _write_tiny(folder, tiny, seed)
        except OSError as error:
            if not folder.is_dir():  # else another process finished it in the meantime, which is as good
                raise ModelError(f"model folder {folder}: cannot be written ({error})") from None
    return folder


def _write_tiny(folder: Path, tiny: TinyModelSpec, seed: int) -> None:
    """`presets.write_tiny`, in a process of its own unless this one has torch anyway: the driver would keep it all run long.

    Raises OSError when it cannot be written.
    """
    if "torch" in sys.modules:
        from rl_trainer.model.presets import write_tiny

        write_tiny(folder, tiny, seed)
        return
    program = f"import sys; sys.path[:] = {sys.path!r}; from rl_trainer.model.presets import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder), tiny.model_dump_json(), str(seed)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WRITE_SECONDS,
            process_group=0,  # a signal to the driver's group is for the driver
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"it was not written within {_WRITE_SECONDS:.0f} s") from None
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
