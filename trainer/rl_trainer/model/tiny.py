"""Configuration of the preset `tiny`, without torch: its sizes are known before its weights are made."""

from __future__ import annotations

from typing import Any

from rl_api.run import TinyModelSpec

PAD, EOS = "<pad>", "<eos>"
# Ids 0 and 1 are the special tokens; then newline and the printable ASCII characters in order.
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
# Wider than the customary 0.02: with few layers the smaller one starts with nearly equal logits and learns
# later.
INIT_STD = 0.05


def tiny_config(shape: TinyModelSpec) -> dict[str, Any]:
    """The preset's `config.json`."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(CHARACTERS) + 2,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": INIT_STD,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "float32",
    }
