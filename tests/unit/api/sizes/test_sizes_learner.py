"""Memory of a learner: what is kept, and what a step needs beside it, which autograd itself is asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from model_configs import MODELS
from transformers import AutoConfig, AutoModelForCausalLM

from rl_api.sizes.learner import (
    MOVED,
    LearnerLayout,
    activation_bytes,
    checkpoint_bytes,
    checkpoint_seconds,
    gathered_bytes,
    kept_bytes,
    layer_bytes_per_token,
    learner_parts,
    main_memory_bytes,
)
from rl_api.sizes.memory import ACCELERATOR_OVERHEAD, GB, PROCESS_OVERHEAD, Device, gigabytes, parameters
from rl_api.sizes.shape import model_shape
from rl_trainer.model.config import parse_config
from rl_trainer.model.decoder import Decoder

H100 = Device(80 * GB)
QWEN = model_shape(MODELS["Qwen2.5-7B"])
PLAIN = LearnerLayout(half=False)
TOKENS = 256


def test_sixteen_bytes_of_each_parameter_are_kept() -> None:
    parts = learner_parts(QWEN, PLAIN, H100)
    count = QWEN.parameters
    assert (parts.weights, parts.gradients, parts.moments) == (4 * count, 4 * count, 8 * count)
    assert (parts.reference, parts.critic, parts.caches, parts.gathered) == (0, 0, 0, 0)
    assert kept_bytes(parts) == 16 * count
    assert parts.total == 16 * count + parts.activations + ACCELERATOR_OVERHEAD
    assert learner_parts(QWEN, PLAIN, Device(1, accelerator=False)).overhead == PROCESS_OVERHEAD


def test_shards_divide_what_is_kept() -> None:
    layout = replace(PLAIN, reference=True, critic=True)
    whole, eighth = (learner_parts(QWEN, replace(layout, ranks=8, shard=f), H100) for f in (1, 8))
    assert whole.reference == 4 * QWEN.parameters
    # A row in place of the output head.
    assert whole.critic == 16 * (QWEN.parameters - QWEN.vocab * QWEN.hidden + QWEN.hidden)
    assert kept_bytes(eighth) == pytest.approx(kept_bytes(whole) / 8, abs=8)


def test_offloaded_moments_are_in_the_pods_main_memory() -> None:
    layout = replace(PLAIN, ranks=8, shard=8, critic=True)
    kept, moved = (learner_parts(QWEN, replace(layout, offload=offload), H100) for offload in (False, True))
    count = QWEN.parameters
    value = count - QWEN.vocab * QWEN.hidden + QWEN.hidden
    assert moved.moments == 8 * MOVED < kept.moments == count
    assert kept.critic - moved.critic == pytest.approx(value, abs=8)
    offloaded = replace(layout, offload=True)
    assert main_memory_bytes(QWEN, offloaded, 4) == 4 * (-(-8 * (count + value) // 8) + PROCESS_OVERHEAD)
    assert main_memory_bytes(QWEN, layout, 4) == main_memory_bytes(QWEN, offloaded, 0) == 0
    pod = Device(64 * GB, accelerator=False)
    assert learner_parts(QWEN, offloaded, pod) == learner_parts(QWEN, layout, pod), "it is there already"


def test_of_a_processor_the_softmax_does_not_count() -> None:
    """And nothing is fetched ahead there in the backward pass."""
    layout, head = replace(PLAIN, tokens=64), 4 * QWEN.vocab * QWEN.hidden
    logits = 4 * 64 * QWEN.vocab
    assert activation_bytes(QWEN, layout) - activation_bytes(QWEN, layout, accelerator=False) == 2 * logits
    large, rows = replace(layout, tokens=4096), 2**24 // QWEN.vocab
    kept = activation_bytes(QWEN, large, accelerator=False) - 28 * 4096 * layer_bytes_per_token(QWEN, 4)
    assert kept == 4 * rows * QWEN.vocab + head
    divided = replace(layout, ranks=4, shard=4)
    spared = gathered_bytes(QWEN, divided) - gathered_bytes(QWEN, divided, accelerator=False)
    assert spared == 2 * 4 * QWEN.largest_layer
    frozen = replace(divided, trained=1)
    assert gathered_bytes(QWEN, frozen) == gathered_bytes(QWEN, frozen, accelerator=False)


def test_adapters_alone_learn() -> None:
    trained = QWEN.lora_parameters(16, ("q_proj", "v_proj"))
    parts = learner_parts(QWEN, replace(PLAIN, trained=trained, reference=True, critic=True), H100)
    assert parts.weights == 4 * (QWEN.parameters + trained)
    assert (parts.gradients, parts.moments) == (4 * trained, 8 * trained)
    assert parts.reference == 0, "the base is the reference"
    assert parts.critic < 5 * QWEN.parameters


def test_working_copies() -> None:
    half = LearnerLayout(ranks=4, shard=4)
    assert gathered_bytes(QWEN, replace(half, shard=1)) == 2 * QWEN.parameters
    assert gathered_bytes(QWEN, replace(half, half=False, shard=1)) == 0
    layer, outside = QWEN.largest_layer, QWEN.outside_parameters
    assert gathered_bytes(QWEN, half) == 4 * outside + 10 * layer
    assert gathered_bytes(QWEN, replace(half, half=False)) == 4 * outside + 16 * layer
    frozen = replace(half, trained=1)
    assert gathered_bytes(QWEN, frozen) == 4 * outside + 4 * layer
    assert gathered_bytes(QWEN, replace(frozen, shard=1, checkpointing=True)) == 2 * layer


def kept_by_autograd(model: torch.nn.Module, call: Any, half: bool) -> int:
    """Bytes that a forward pass keeps for the backward pass, without the parameters."""
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    seen = dict[int, torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        result = call()
    assert result is not None
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


def config(family: str, layers: int, **more: Any) -> dict[str, Any]:
    return {
        **{"model_type": family, "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": layers},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160},
        **{"max_position_embeddings": 512, **more},
    }


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_layer_of_our_decoder_keeps_what_is_counted(family: str, half: bool) -> None:
    def kept(layers: int) -> int:
        model = Decoder(parse_config(config(family, layers)))
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        places = torch.arange(TOKENS)
        return kept_by_autograd(model, lambda: model.hidden_at(ids, torch.ones_like(ids), places), half)

    shape = model_shape(config(family, 3))
    layer = TOKENS * layer_bytes_per_token(shape, 2 if half else 4)
    # Autocast's copies of the matrices are counted elsewhere; biases and norms have none.
    copies = 2 * sum(linear.rows * linear.columns for linear in (shape.linears or {}).values()) if half else 0
    assert kept(3) - kept(2) == pytest.approx(layer + copies, rel=0.001)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_head": 4, "n_positions": 512},
    **{"bos_token_id": 1, "eos_token_id": 2, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text", "phi3", "gpt2", "qwen3_moe"])
def test_a_layer_of_the_librarys_keeps_about_what_is_counted(family: str, half: bool) -> None:
    def fields(layers: int) -> dict[str, Any]:
        if family == "gpt2":
            return {**GPT2, "n_layer": layers}
        return config(family, layers, pad_token_id=0, **(EXPERTS if family == "qwen3_moe" else {}))

    def kept(layers: int) -> int:
        options = AutoConfig.for_model(**fields(layers), attn_implementation="sdpa")
        model = AutoModelForCausalLM.from_config(options)
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        return kept_by_autograd(model, lambda: model(ids, use_cache=False).logits, half)

    shape = model_shape(fields(3))
    copied = shape.largest_layer if not shape.experts else shape.largest_layer - 8 * 3 * 64 * 96
    layer = TOKENS * layer_bytes_per_token(shape, 2 if half else 4)
    assert kept(3) - kept(2) == pytest.approx(layer + (2 * copied if half else 0), rel=0.06)


def test_checkpointing_keeps_inputs_and_one_layer() -> None:
    layout = LearnerLayout(tokens=1000)
    layer = 1000 * layer_bytes_per_token(QWEN, 2)
    whole = activation_bytes(QWEN, layout)
    spared = activation_bytes(QWEN, replace(layout, checkpointing=True))
    assert whole - spared == 27 * layer - 1000 * 28 * 3584 * 4


def test_checkpoints() -> None:
    assert checkpoint_bytes(QWEN, PLAIN) == 12 * QWEN.parameters
    assert checkpoint_bytes(QWEN, replace(PLAIN, trained=10)) == 4 * QWEN.parameters + 120
    with_critic = checkpoint_bytes(QWEN, replace(PLAIN, critic=True))
    assert with_critic == 12 * (2 * QWEN.parameters - QWEN.vocab * QWEN.hidden + QWEN.hidden)
    assert checkpoint_seconds(90 * GB, 2 * GB) == 45


def test_how_sizes_are_said() -> None:
    assert [gigabytes(size) for size in (12e6, 3.42e9, 9.96e9, 121.8e9)] == [
        "12 MB",
        "3.4 GB",
        "10 GB",
        "122 GB",
    ]
    said = [parameters(count) for count in (7_615_616_512, 494_032_768, 999_600_000, 66_000)]
    assert said == ["7.6 B parameters", "494 M parameters", "1.0 B parameters", "66 k parameters"]


def test_a_checkpoint_that_is_copied_on_cpus_takes_each_rank_its_part():
    apart = replace(PLAIN, ranks=4, shard=2, critic=True)
    before, after = (
        learner_parts(QWEN, one, Device(1, accelerator=False)) for one in (apart, replace(apart, copied=True))
    )
    assert before.checkpoint == 0
    assert after.checkpoint == -(-checkpoint_bytes(QWEN, apart) // 4)
    assert after.total == before.total + after.checkpoint


def test_from_accelerators_it_is_copied_into_the_pods_main_memory():
    shared = replace(PLAIN, ranks=8, shard=8, copied=True)
    assert learner_parts(QWEN, shared, H100).checkpoint == 0
    assert main_memory_bytes(QWEN, shared, 8) == pytest.approx(12 * QWEN.parameters, abs=8)
    both = main_memory_bytes(QWEN, replace(shared, offload=True), 4)
    assert both == main_memory_bytes(QWEN, shared, 4) + main_memory_bytes(
        QWEN, replace(shared, offload=True, copied=False), 4
    )
