"""Writing what other tools open: Hugging Face model folders and `peft` adapters, from tensors that come piece by piece and
without torch, so that the driver can.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_api import LoraSpec
from rl_trainer.checkpoint.tensor_file import TensorStream, write_tensors
from rl_trainer.model.config import read_json

WEIGHTS = "model.safetensors"
# What other tools look for in a file of weights.
_METADATA = {"format": "pt"}
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

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def write_folder(weights: TensorStream, source: Path, target: Path) -> None:
    """Write a model folder with these weights (by Hugging Face name) and `source`'s configuration and tokenizer; it
    appears complete or not at all.

    Raises OSError (disk full, no permission) after removing what was written so far; a `target` that was
    there before is replaced only once its successor is complete.
    """
    with appearing(target) as temporary:
        for name in (*CONFIG_FILES, *TOKENIZER_FILES):
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)
        _record_dtype(temporary / "config.json", weights)
        write_tensors(weights, temporary / WEIGHTS, metadata=_METADATA)


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


def _record_dtype(path: Path, weights: TensorStream) -> None:
    """Say in config.json what the weights are stored in: the library opens the folder in that dtype."""
    config = read_json(path)
    config.pop("torch_dtype", None)
    config["dtype"] = next(_DTYPES[kind] for kind, _ in weights.shapes.values() if kind in _DTYPES)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_adapter(tensors: TensorStream, options: LoraSpec, base: str, target: Path) -> None:
    """Writes a folder that `peft.PeftModel.from_pretrained` opens; `base`: the model that it changes."""
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
    target.mkdir(parents=True)
    (target / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tensors(tensors, target / ADAPTER_WEIGHTS, metadata=_METADATA)
