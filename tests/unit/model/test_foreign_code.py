"""A model, a checkpoint or a tokenizer of somebody else's is data: nothing in it is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_api.errors import CheckpointError, ModelError
from rl_trainer.checkpoint.random_state import restore_rng
from rl_trainer.checkpoint.state import unpack_payloads
from rl_trainer.model.export import INDEX
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.loader import load_model
from rl_trainer.model.resolve import resolve_model
from rl_trainer.model.tokenizer import load_tokenizer


class Evil:
    """A pickle that makes a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is there once code of the folder has run; whoever is asked on the terminal says yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return tmp_path / "ran"


@pytest.fixture
def folder(family_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(family_folder("gpt2"), tmp_path / "model"))


def evil(folder: Path, name: str, marker: Path) -> None:
    """Weights that are a pickle."""
    torch.save(Evil(marker), folder / name)


def code(folder: Path, marker: Path) -> dict[str, Any]:
    """Has the folder bring its own classes."""
    (folder / "modeling_evil.py").write_text(
        f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n"
        "from transformers import PretrainedConfig, GPT2LMHeadModel, PreTrainedTokenizerFast\n"
        "class EvilConfig(PretrainedConfig):\n    model_type = 'evil'\n"
        "class EvilModel(GPT2LMHeadModel):\n    config_class = EvilConfig\n"
        "class EvilTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "modeling_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"}
    config |= {"model_type": "evil", "auto_map": names, "architectures": ["EvilModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    return config


def test_the_pickle_is_evil(tmp_path: Path, marker: Path) -> None:
    evil(tmp_path, "x.bin", marker)
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_weights_that_are_a_pickle(folder: Path, marker: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    evil(folder, name, marker)
    for load in (load_model, LibraryModel.open):
        with pytest.raises(ModelError):
            load(folder)
    assert not marker.exists()


def test_classes_of_the_folder(folder: Path, marker: Path) -> None:
    code(folder, marker)
    for load in (load_model, LibraryModel.open):
        with pytest.raises(
            ModelError, match="neither the built-in decoder nor the Hugging Face library can open it"
        ):
            load(folder)
    assert not marker.exists()


def test_a_tokenizer_of_the_folder(folder: Path, marker: Path) -> None:
    code(folder, marker)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "EvilTokenizer",
                "auto_map": {"AutoTokenizer": [None, "modeling_evil.EvilTokenizer"]},
            }
        )
    )
    for name in ("tokenizer.json", "tokenizer.model"):
        (folder / name).unlink(missing_ok=True)
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(ModelError):
        load_tokenizer(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["../elsewhere.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b", 5]
)
def test_an_index_names_files_beside_it(folder: Path, name: Any) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    with pytest.raises(ModelError, match=r"names .*, allowed: files beside it"):
        resolve_model(str(folder), folder.parent)


def test_groups_and_generators_of_a_checkpoint(marker: Path) -> None:
    data = io.BytesIO()
    np.savez(data, groups=np.array([Evil(marker)], dtype=object))
    for content in (data.getvalue(), pickle.dumps(Evil(marker))):
        with pytest.raises(CheckpointError):
            unpack_payloads(content)
        with pytest.raises(CheckpointError):
            restore_rng(content)
    assert not marker.exists()
