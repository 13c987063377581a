"""Memory of a sampler, and its room for keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_configs import LLAMA_2_7B, MODELS
from scale_page import LEFT, STAGES

from rl_api.sizes.memory import GB, Device
from rl_api.sizes.sampler import (
    SamplerLayout,
    block_bytes,
    kv_blocks,
    sampler_memory,
    swap_blocks,
    weight_bytes,
)
from rl_api.sizes.shape import model_shape

H100 = Device(80 * GB)
QWEN = model_shape(MODELS["Qwen2.5-7B"])
LLAMA = model_shape(LLAMA_2_7B)
PLAIN = SamplerLayout()


def test_blocks_of_pipeline_stages_are_those_that_were_measured() -> None:
    """vLLM's own lines for one model on one, two and four stages: GPU blocks and CPU blocks."""
    layouts = [SamplerLayout(pipeline_parallel=stages) for stages in STAGES]
    assert [kv_blocks(LEFT, LLAMA, layout) for layout in layouts] == [3796, 7592, 15185]
    assert [swap_blocks(LLAMA, layout) for layout in layouts] == [512, 1024, 2048]
    assert block_bytes(LLAMA, PLAIN) == 8 * 2**20


def test_blocks_more_than_double_where_weights_are_divided() -> None:
    card = Device(int(47.5 * 2**30))
    blocks = [
        sampler_memory(LLAMA, SamplerLayout(pipeline_parallel=stages), card).blocks for stages in STAGES
    ]
    assert blocks[0] == pytest.approx(3796, rel=0.05), "with all weights on one device, as in the measurement"
    assert blocks[1] > 2 * blocks[0]
    assert blocks[2] > 2 * blocks[1]


def test_weights_are_divided() -> None:
    assert weight_bytes(QWEN, PLAIN) == 2 * QWEN.parameters
    assert weight_bytes(QWEN, replace(PLAIN, tensor_parallel=4)) == QWEN.parameters // 2
    assert weight_bytes(QWEN, replace(PLAIN, half=False)) == 4 * QWEN.parameters
    layer, head = QWEN.largest_layer, QWEN.vocab * QWEN.hidden + QWEN.hidden
    assert weight_bytes(QWEN, replace(PLAIN, pipeline_parallel=4)) == 2 * (7 * layer + head)
    assert weight_bytes(QWEN, replace(PLAIN, pipeline_parallel=3)) == 2 * (10 * layer + head), (
        "28 layers: 10, 9, 9"
    )


def test_quantised_are_the_layers() -> None:
    fp8 = weight_bytes(QWEN, replace(PLAIN, quantization="fp8"))
    assert fp8 == sum(QWEN.layer_parameters) + 2 * QWEN.outside_parameters


def test_keys_and_values_of_a_token() -> None:
    assert block_bytes(QWEN, PLAIN) == 16 * 2 * 28 * 4 * 128 * 2
    assert block_bytes(QWEN, replace(PLAIN, tensor_parallel=4)) == 16 * 2 * 28 * 128 * 2
    # With more devices than heads, some are held twice.
    assert block_bytes(QWEN, replace(PLAIN, tensor_parallel=8)) == 16 * 2 * 28 * 128 * 2


def test_vllm_fills_what_it_may_take() -> None:
    memory = sampler_memory(QWEN, replace(PLAIN, utilization=0.5), H100)
    assert memory.allowed == 40 * GB
    assert 0 <= memory.allowed - memory.parts.total < block_bytes(QWEN, PLAIN)
    assert memory.tokens == 16 * memory.blocks
    assert (
        memory.left + memory.parts.weights + memory.parts.activations + memory.parts.overhead
        == memory.allowed
    )


def test_the_torch_engine_takes_what_its_sequences_need() -> None:
    layout = SamplerLayout(engine="torch", length=100, sequences=3)
    memory = sampler_memory(QWEN, layout, H100)
    assert memory.allowed == H100.memory
    assert memory.blocks == 3 * 7
    assert memory.parts.caches == 21 * block_bytes(QWEN, layout)
    on_cpu = sampler_memory(QWEN, layout, Device(H100.memory, accelerator=False))
    assert on_cpu.parts.weights == 2 * memory.parts.weights, "new ones are copied beside those that decode"
    experts = model_shape(MODELS["Qwen3-30B-A3B"])
    one = sampler_memory(experts, layout, Device(H100.memory, accelerator=False))
    assert one.parts.weights == weight_bytes(experts, layout), "the library's engine copies into those it has"


def test_without_room_there_are_no_blocks() -> None:
    memory = sampler_memory(QWEN, PLAIN, Device(16 * GB))
    assert memory.left < 0
    assert memory.blocks == memory.parts.caches == 0
