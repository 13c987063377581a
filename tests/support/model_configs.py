"""What decides the sizes of published models, of their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32_768}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2.5-0.5B": _QWEN2
    | {
        **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
        **{"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
    },
    "Qwen2.5-7B": _QWEN2
    | {
        **{
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
        },
        **{"num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
    },
    "Qwen2.5-32B": _QWEN2
    | {
        **{
            "hidden_size": 5120,
            "intermediate_size": 27_648,
            "num_hidden_layers": 64,
            "num_attention_heads": 40,
        },
        **{"num_key_value_heads": 8, "vocab_size": 152_064, "tie_word_embeddings": False},
    },
    "Qwen2.5-72B": _QWEN2
    | {
        **{
            "hidden_size": 8192,
            "intermediate_size": 29_568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
        },
        **{"num_key_value_heads": 8, "vocab_size": 152_064, "tie_word_embeddings": False},
    },
    "Qwen3-30B-A3B": {
        **{"model_type": "qwen3_moe", "max_position_embeddings": 40_960, "hidden_size": 2048},
        **{"intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "head_dim": 128},
        **{"num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8},
        **{"vocab_size": 151_936, "tie_word_embeddings": False},
    },
}
"""What decides the sizes in the models' own config.json."""

LLAMA_2_7B: Mapping[str, Any] = {
    **{"model_type": "llama", "max_position_embeddings": 4096, "hidden_size": 4096, "vocab_size": 32_000},
    **{"intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 32, "tie_word_embeddings": False},
}
