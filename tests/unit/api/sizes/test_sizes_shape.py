"""Parameter counts: those of the library's models, family by family, and those that are known of models in use."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from model_configs import LLAMA_2_7B, MODELS
from transformers import AutoConfig, AutoModelForCausalLM

from rl_api.errors import ModelError
from rl_api.sizes.shape import FAMILIES, model_shape
from rl_trainer.model.config import SUPPORTED_MODEL_TYPES

SMALL = {
    **{
        "vocab_size": 211,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    **{"intermediate_size": 80, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def library_model(family: str, **fields: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The library's model without memory, and its configuration as it is written."""
    config = AutoConfig.for_model(family, **fields)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config), config.to_dict()


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {}),
        ("gemma", {"head_dim": 16}),
        ("gemma2", {"head_dim": 16}),
        ("gemma3_text", {}),
        ("phi3", {}),
        ("qwen3_moe", {"head_dim": 16, **EXPERTS}),
        ("qwen3_moe", {"decoder_sparse_step": 2, **EXPERTS}),
        ("qwen3_moe", {"mlp_only_layers": [0], **EXPERTS}),
    ],
)
def test_counts_are_the_librarys(family: str, more: dict[str, Any]) -> None:
    model, written = library_model(family, **SMALL, **more)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert model_shape({"model_type": family, **SMALL, **more}).parameters == count
    assert model_shape(written).parameters == count, "as the library writes it"


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gpt2", "qwen3_moe"])
def test_adapters_are_of_the_librarys_modules(family: str) -> None:
    fields = SMALL | (EXPERTS | {"mlp_only_layers": [0]} if family == "qwen3_moe" else {})
    if family == "gpt2":
        fields = {"vocab_size": 211, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
        fields |= {"bos_token_id": 1, "eos_token_id": 2}
    model, written = library_model(family, **fields)
    shape = model_shape(written)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    for name in shape.linears or {}:
        modules = [one for path, one in model.named_modules() if path.rpartition(".")[2] == name]
        expected = sum(4 * sum(one.weight.shape) for one in modules)
        assert modules
        assert shape.lora_parameters(4, (name,)) == expected, name


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-32B", 32_763_876_352),
        ("Qwen2.5-72B", 72_706_203_648),
        ("Qwen3-30B-A3B", 30_532_122_624),
    ],
)
def test_known_totals(name: str, count: int) -> None:
    assert model_shape(MODELS[name]).parameters == count


def test_of_experts_a_token_passes_through_some() -> None:
    shape = model_shape(MODELS["Qwen3-30B-A3B"])
    assert (shape.experts, shape.experts_per_token) == (128, 8)
    assert shape.active_parameters == 3_353_032_704
    dense = model_shape(LLAMA_2_7B)
    assert dense.parameters == dense.active_parameters == 6_738_415_616


def test_families_of_our_decoder_are_known() -> None:
    assert set(SUPPORTED_MODEL_TYPES) <= set(FAMILIES)
    assert all(model_shape({"model_type": one, **SMALL}).fused for one in SUPPORTED_MODEL_TYPES)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": None}, "here: model_type is missing; is this a Hugging Face model folder?"),
        (
            {"model_type": "rwkv"},
            "here: model_type: found 'rwkv', whose sizes are not known; allowed: llama, ",
        ),
        ({"hidden_size": None}, "here: hidden_size: missing, allowed: a whole number of at least 1"),
        ({"vocab_size": 0}, "here: vocab_size: found 0, allowed: a whole number of at least 1"),
        (
            {"num_hidden_layers": "3"},
            "here: num_hidden_layers: found '3', allowed: a whole number of at least 1",
        ),
        (
            {"tie_word_embeddings": "false"},
            "here: tie_word_embeddings: found 'false', allowed: true or false",
        ),
        ({"num_hidden_layers": 10**12}, f"here: num_hidden_layers: found {10**12}, allowed: at most 10000"),
        (
            {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": 5},
            "here: mlp_only_layers: found 5, allowed: a list of numbers of layers, from 0 on",
        ),
        (
            {"model_type": "qwen3_moe", **EXPERTS, "decoder_sparse_step": "x"},
            "here: decoder_sparse_step: found 'x', allowed: a whole number of at least 1",
        ),
        (
            {"model_type": "gpt2", "n_embd": 4, "n_head": 8, "n_layer": 1, "n_positions": 8},
            "here: n_head: found 8, allowed: at most n_embd, which is 4",
        ),
    ],
)
def test_what_cannot_be_read(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_shape({"model_type": "llama", **SMALL, **change}, "here")
    assert str(caught.value).startswith(sentence)


ODD = (
    *(None, True, False, "", "x", "3", [], [1], ["x"], [None], [[1]], {}, {"x": 1}),
    *(-1, 0, 1, 7, 10**9, 10**12, 10**400, -(10**400), 0.5, 3.0, -1.0, float("inf"), float("nan")),
)
FIELDS = (
    *SMALL,
    *EXPERTS,
    *("model_type", "head_dim", "num_local_experts", "decoder_sparse_step", "mlp_only_layers"),
    *("attention_bias", "mlp_bias", "tie_word_embeddings"),
    *("n_embd", "n_head", "n_layer", "n_positions", "n_inner"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_fields_are_a_sentence_or_a_shape(family: str) -> None:
    gpt2 = {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64}
    for field, value in itertools.product(FIELDS, ODD):
        raw = {"model_type": family, **SMALL, **EXPERTS, **gpt2, field: value}
        refused = ""
        try:
            shape = model_shape(raw, "here")
        except ModelError as error:
            refused = str(error)
        if refused:
            assert refused.startswith("here: "), (field, value)
        else:
            assert shape.parameters >= shape.active_parameters > 0, (field, value)
            assert shape.head_dim > 0, (field, value)


def test_adapters_of_a_module_that_is_not_there() -> None:
    with pytest.raises(ModelError) as caught:
        model_shape({"model_type": "phi3", **SMALL}).lora_parameters(4, ("q_proj",))
    assert str(caught.value) == (
        "spec.learner.lora.targetModules: found q_proj, which a phi3 model does not have; "
        "allowed: qkv_proj, o_proj, gate_up_proj, down_proj"
    )
