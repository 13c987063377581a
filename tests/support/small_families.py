"""Folders of tiny random models of several families, for learners that divide them."""

from __future__ import annotations

from pathlib import Path

from library_models import save_random_model

_SIZES = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "gemma": ("Gemma", {}),
    "phi3": ("Phi3", {"tie_word_embeddings": False}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    ),
    "granite-swa": ("GraniteSWA", {"sliding_window": 2, "layer_types": ["sliding_attention"] * 2}),
    "mamba": ("Mamba", {"intermediate_size": 64, "state_size": 4, "time_step_rank": 2}),
}
_GPT2 = {"vocab_size": 67, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}


def save_small(name: str, folder: Path) -> None:
    """Writes the model `gpt2` or one of FAMILIES; sizes that no number of ranks divides, such as 67 tokens."""
    if name == "gpt2":
        save_random_model(folder, "GPT2", {**_GPT2, "eos_token_id": 2})
    else:
        family, extra = FAMILIES[name]
        save_random_model(folder, family, {**_SIZES, **extra})
