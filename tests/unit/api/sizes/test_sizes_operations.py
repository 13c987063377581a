"""Operations of passes, against those that torch counts in the library's models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_configs import MODELS
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen2Config

from rl_api import RunSpec
from rl_api.sizes.operations import forward_operations, learning_operations
from rl_api.sizes.shape import ModelShape, model_shape

TOKENS = 48
CONFIG = Qwen2Config(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
LARGE = model_shape(MODELS["Qwen2.5-7B"])


def shape() -> ModelShape:
    return model_shape(CONFIG.to_dict())


def counted(*, backward: bool, frozen: bool = False, tokens: int = TOKENS) -> int:
    """By torch, of one sequence whose every token the head is asked of, attention as plain products; `frozen`: only the
    embeddings that come in learn, as an adapter before all layers would."""
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager")
    model.requires_grad_(not frozen)
    read = model.get_input_embeddings()(torch.arange(tokens)[None] % CONFIG.vocab_size)
    with FlopCounterMode(display=False) as counter:
        logits = model(inputs_embeds=read.requires_grad_(), use_cache=False).logits
        if backward:
            logits.sum().backward()
    total: int = counter.get_total_flops()
    return total


def whole_square(tokens: int = TOKENS) -> float:
    """What the library's plain attention does for pairs of which a causal model looks at none."""
    return 2 * CONFIG.num_hidden_layers * CONFIG.hidden_size * tokens**2


def test_a_forward_pass_takes_what_torch_counts():
    found = forward_operations(shape(), [TOKENS], [TOKENS], 0)
    assert found + whole_square() == pytest.approx(counted(backward=False), rel=0.01)


def test_a_step_takes_what_torch_counts_of_forward_and_backward_pass():
    found = learning_operations(run(), shape(), [TOKENS], [TOKENS], 0)
    assert found + 3 * whole_square() == pytest.approx(counted(backward=True), rel=0.01)


def test_beside_frozen_weights_attention_goes_backward_all_the_same():
    tokens = 512  # half of the work is attention's
    found = learning_operations(run(learner={"lora": {"rank": 1}}), shape(), [tokens], [tokens], 0)
    expected = counted(backward=True, frozen=True, tokens=tokens)
    assert found + 3 * whole_square(tokens) == pytest.approx(expected, rel=0.01)


def test_what_tools_have_said_is_each_answers_own():
    """40 tokens of a prompt, 10 sampled and 50 of a tool in each of two answers."""
    found = forward_operations(LARGE, [10, 10], [100, 100], 40, head=False)
    layers = 2 * sum(LARGE.active_layer_parameters) * (40 + 60 + 60)
    pairs = 2 * LARGE.layers * LARGE.heads * LARGE.head_dim * (40**2 + 2 * (100**2 - 40**2))
    assert found == layers + pairs


def test_the_head_is_asked_of_sampled_tokens_and_a_prompt_counts_once():
    alone = forward_operations(LARGE, [0], [100], 100)
    assert forward_operations(LARGE, [0] * 8, [100] * 8, 100) == alone, "eight answers of no token"
    with_one = forward_operations(LARGE, [1], [101], 100)
    head = 2 * LARGE.vocab * LARGE.hidden
    layers = 2 * sum(LARGE.active_layer_parameters)
    pairs = 2 * LARGE.layers * LARGE.heads * LARGE.head_dim * (101**2 - 100**2)
    assert with_one == alone + head + layers + pairs
    assert forward_operations(LARGE, [1], [101], 100, head=False) == with_one - head
    assert forward_operations(LARGE, [1, 1], [101, 101], 100) == with_one + head + layers + pairs


@pytest.mark.parametrize(
    ("parts", "passes", "without_head"),
    [
        ({}, 3, 0),
        ({"algorithm": {"epochs": 2}}, 6, 0),
        ({"algorithm": {"kl": {"coefficient": 0.01}}}, 4, 0),
        ({"algorithm": {"name": "ppo"}}, 3, 4),
    ],
    ids=["all weights", "two epochs", "a reference", "a critic"],
)
def test_passes_of_a_step(parts: dict[str, Any], passes: int, without_head: int):
    lengths, totals = [30, 50], [40, 60]
    forward = forward_operations(LARGE, lengths, totals, 10)
    body = forward_operations(LARGE, lengths, totals, 10, head=False)
    found = learning_operations(run(**parts), LARGE, lengths, totals, 10)
    assert found == pytest.approx(passes * forward + without_head * body)


def test_adapters_learn_in_each_epoch_and_a_reference_adds_a_pass():
    pairs = 2 * LARGE.layers * LARGE.heads * LARGE.head_dim * (10**2 + 40**2 - 10**2 + 60**2 - 10**2)
    weights = forward_operations(LARGE, [30, 50], [40, 60], 10) - pairs
    algorithm = {"epochs": 2, "kl": {"coefficient": 0.01}}
    found = learning_operations(
        run(learner={"lora": {"rank": 8}}, algorithm=algorithm), LARGE, [30, 50], [40, 60], 10
    )
    assert found == pytest.approx(5 * weights + 7 * pairs)


def run(**parts: dict[str, Any]) -> RunSpec:
    task = {"environment": "reasoning-gym", "name": "chain_sum"}
    return RunSpec.model_validate({"model": {"source": "somewhere"}, "task": task, **parts})
