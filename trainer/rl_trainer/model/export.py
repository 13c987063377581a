"""What makes files of tensors, which learners write, folders that other tools open: Hugging Face models, `peft` adapters."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_api import LoraSpec
from rl_trainer.checkpoint.state import SavedFiles
from rl_trainer.model.config import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# What other tools look for in a file of weights.
WEIGHTS_METADATA = {"format": "pt"}
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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


def describe_weights(source: Path, target: Path, weights: SavedFiles) -> None:
    """Makes `target`, which has the files of `weights`, a model folder: with configuration and tokenizer of the folder
    `source`, and an index where there are several files. It is made where the files lie elsewhere.

    Raises OSError (disk full, no permission).
    """
    target.mkdir(exist_ok=True)
    for name in (*CONFIG_FILES, *TOKENIZER_FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    _record_dtype(target / "config.json")
    files = {tensor: file.rpartition("/")[2] for tensor, file in weights.weight_map.items()}
    if len(set(files.values())) > 1:
        index = {"metadata": {"total_size": weights.weight_bytes}, "weight_map": files}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` at the end of the block; after an error nothing is left of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.mkdir()
        yield temporary
        _publish(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _publish(temporary: Path, target: Path) -> None:
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


def _record_dtype(path: Path) -> None:
    """Say in config.json what learners keep weights in: the library opens the folder in that dtype."""
    config = read_json(path)
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def describe_adapter(options: LoraSpec, base: str, target: Path) -> None:
    """Makes a folder of adapters one that `peft.PeftModel.from_pretrained` opens; `base`: the model that they change.

    It is made where the adapters lie elsewhere. Raises as `describe_weights`.
    """
    target.mkdir(exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": options.rank,
        "lora_alpha": options.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(options.target_modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (target / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
