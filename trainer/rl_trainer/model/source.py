"""What the user wrote in `model.source`, and the configuration of the model that it means; without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from rl_api.errors import ModelError, ModelUnavailable, Unavailable
from rl_api.run import ModelSpec, TinyModelSpec
from rl_trainer.model.config import FIELD, read_json
from rl_trainer.model.tiny import tiny_config
from rl_trainer.storage.remote_folder import RemoteFolder

PRESETS = ("tiny",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# A question with a person before it: no download of gigabytes.
_STALLED_SECONDS = 30.0


def place_of(source: str, where: str = FIELD) -> Literal["preset", "remote", "folder", "hub"]:
    """Where a model is; ModelError, which begins with `where`, for what was meant as a folder and is none."""
    if source in PRESETS:
        return "preset"
    if "://" in source:
        return "remote"
    if Path(source).expanduser().is_dir():
        return "folder"
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or not _HUB_ID.fullmatch(source):
        raise ModelError(
            f"{where}{source} is not a folder; give a preset ({', '.join(PRESETS)}), a local folder, "
            "a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or s3://..."
        )
    return "hub"


def checked_sizes(tiny: TinyModelSpec) -> dict[str, Any]:
    """Sizes of the preset by field; ModelError where they do not fit each other."""
    sizes = tiny.model_dump()
    if sizes["hidden_size"] % sizes["heads"] or (sizes["hidden_size"] // sizes["heads"]) % 2:
        raise ModelError(
            f"model.tiny: hiddenSize {sizes['hidden_size']} over heads {sizes['heads']} gives no even head size"
        )
    if sizes["heads"] % sizes["kv_heads"]:
        raise ModelError(
            f"model.tiny: heads {sizes['heads']} is not a multiple of kvHeads {sizes['kv_heads']}"
        )
    return sizes


def source_config(model: ModelSpec, where: str = FIELD) -> dict[str, Any]:
    """Contents of the `config.json` of a model; of its weights nothing is read, and of a remote one nothing is kept.

    `where` names the field that holds its source, and begins the sentences about it.

    Raises:
        ModelError: it is not there, or is no JSON object; ModelUnavailable where hub or object store do not answer.
    """
    place = place_of(model.source, where)
    if place == "preset":
        tiny = model.tiny or TinyModelSpec()
        checked_sizes(tiny)
        return tiny_config(tiny)
    if place == "folder":
        return read_json(Path(model.source).expanduser() / "config.json")
    if place == "remote":
        return _remote_config(model.source, where)
    from rl_trainer.model.download import config_from_hub

    return read_json(config_from_hub(model.source, model.revision, where))


def _remote_config(source: str, where: str) -> dict[str, Any]:
    folder, what = RemoteFolder(source, stalled=_STALLED_SECONDS), f"{where}{source} cannot be read"
    try:
        content = folder.within(what, lambda: folder.read("config.json"))
    except Unavailable as error:
        raise ModelUnavailable(str(error)) from None
    if content is None:
        raise ModelError(f"{where}the folder at {source} has no config.json")
    try:
        raw = json.loads(content)
    except ValueError as error:
        raise ModelError(f"{where}config.json at {source} is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{where}config.json at {source} holds no JSON object")
    return raw
