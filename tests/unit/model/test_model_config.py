from __future__ import annotations

import json

import pytest

from rl_api.errors import ModelError
from rl_trainer.model.config import UnsupportedModelError, is_supported, parse_config, read_config

QWEN2 = {
    "model_type": "qwen2",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def test_both_spellings_of_rotary_parameters():
    old = parse_config({**QWEN2, "rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = parse_config(
        {**QWEN2, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}}
    )
    assert old == new
    assert (old.rope.theta, old.rope.type, old.rope.factor) == (1e6, "linear", 2.0)


def test_what_the_families_imply():
    qwen2 = parse_config(QWEN2)
    assert qwen2.qkv_bias
    assert not qwen2.output_bias
    assert not qwen2.qk_norm
    assert (qwen2.head_dim, qwen2.groups, qwen2.norm_eps) == (8, 2, 1e-6)
    qwen3 = parse_config({**QWEN2, "model_type": "qwen3"})
    assert qwen3.qk_norm
    assert not qwen3.qkv_bias
    assert qwen3.head_dim == 128
    llama = parse_config({**QWEN2, "model_type": "llama", "attention_bias": True, "mlp_bias": True})
    assert llama.qkv_bias
    assert llama.output_bias
    assert llama.mlp_bias
    assert parse_config({**QWEN2, "num_key_value_heads": None}).kv_heads == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model_type": "gpt2"},
            "model_type 'gpt2' is not one that the built-in decoder runs (llama, mistral, qwen2",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary positions of type 'yarn'"),
        ({"use_sliding_window": True, "sliding_window": 32}, "sliding_window is 32, below"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"model_type": "mistral"}, None),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window is 16"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_variants_the_decoder_does_not_run(change, words):
    if words is None:  # the library's default window of 4096 is longer than this context
        assert parse_config({**QWEN2, **change}).model_type == "mistral"
        return
    with pytest.raises(UnsupportedModelError) as caught:
        parse_config({**QWEN2, **change})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "need a factor"),
    ],
)
def test_broken_configurations(change, words):
    with pytest.raises(ModelError) as caught:
        parse_config({**QWEN2, **change}, where="folder/config.json")
    assert not isinstance(caught.value, UnsupportedModelError)
    assert words in str(caught.value)
    assert str(caught.value).startswith("folder/config.json: ")


def test_files(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2",')
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON \(line 1"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="no JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    assert is_supported(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**QWEN2, "model_type": "gemma2"}))
    assert not is_supported(tmp_path)
