"""What several unit tests need: small random models written by the Hugging Face library itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from library_models import made_once, save_family_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SIZES: dict[str, object] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2: dict[str, object] = {
    "vocab_size": 61,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "eos_token_id": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
}


@pytest.fixture(autouse=True)
def no_ray() -> Iterator[None]:
    """Ray starts by itself where something of it is called, and would be the one of every later test of the process."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("a unit test has started Ray: it belongs to tests/integration")


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`family_folder(name)`: a folder saved by the library, every parameter random, for a name of FAMILIES or `gpt2`."""
    return made_once(tmp_path_factory, _save)


@pytest.fixture
def gpt2(family_folder: Callable[[str], Path]) -> Path:
    """A family that the decoder does not run, with linear modules whose weights lie the other way round."""
    return family_folder("gpt2")


def _save(name: str, folder: Path) -> None:
    save_family_model(name, folder, FAMILIES, SIZES, GPT2)
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1} | {f"w{index}": index for index in range(2, 61)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def any_scheme() -> Iterator[None]:
    """Stores in memory and on the disk stand for an object store, the only one that is opened otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_trainer.storage.remote_folder.is_s3_address", lambda uri: True)
        yield
