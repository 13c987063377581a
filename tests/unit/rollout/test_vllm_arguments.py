"""What vLLM is told, for each combination of what it is asked for; without vLLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_trainer.rollout.engines.base import GenerationRequest, Prefilled, SamplingParams
from rl_trainer.rollout.engines.vllm_arguments import (
    CPU_CACHE,
    GPU_MEMORY_SHARE,
    WORKER_EXTENSION,
    cache_bytes,
    cpu_shares,
    engine_arguments,
    place_for_vllm,
    sampling_arguments,
    transfer_arguments,
)
from rl_trainer.rollout.engines.vllm_needs import ONE_DEVICE, Pods, Transfer, VllmOptions
from rl_trainer.rollout.engines.vllm_worker import WorkerExtension

FOLDER = Path("/models/one")
# On one GPU, with nothing asked for.
PLAIN: dict[str, Any] = {
    "model": "/models/one",
    "skip_tokenizer_init": True,
    "trust_remote_code": False,
    "load_format": "safetensors",
    "generation_config": "vllm",
    "dtype": "bfloat16",
    "max_num_seqs": 8,
    "max_model_len": -1,
    "logprobs_mode": "processed_logprobs",
    "worker_extension_cls": WORKER_EXTENSION,
    "enable_prefix_caching": True,
    "async_scheduling": False,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "gpu_memory_utilization": GPU_MEMORY_SHARE,
}


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (ONE_DEVICE, {}),
        (VllmOptions(2), {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        (VllmOptions(1, 2), {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}),
        (
            VllmOptions(4, 2),
            {
                "tensor_parallel_size": 4,
                "pipeline_parallel_size": 2,
                "distributed_executor_backend": "mp",
            },
        ),
        (
            VllmOptions(4, 2, pods=Pods(2, 1, "10.0.0.2", "10.0.0.1", 29500)),
            {
                **{"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
                **{"distributed_executor_backend": "mp", "nnodes": 2, "node_rank": 1},
                **{"master_addr": "10.0.0.1", "master_port": 29500, "device_ids": [0, 1, 2, 3]},
            },
        ),
        (VllmOptions(gpu_memory_utilization=0.5), {"gpu_memory_utilization": 0.5}),
        (VllmOptions(max_model_len=4096), {"max_model_len": 4096}),
        (VllmOptions(quantization="fp8"), {"quantization": "fp8"}),
        (VllmOptions(seed=0), {"seed": 0}),
    ],
    ids=str,
)
def test_arguments_of_an_engine(options: VllmOptions, more: dict[str, Any]):
    assert engine_arguments(FOLDER, 8, "bfloat16", options) == PLAIN | more
    on_cpu = {"enforce_eager": True, "enable_chunked_prefill": False, "kv_cache_memory_bytes": 1000}
    assert engine_arguments(FOLDER, 8, "bfloat16", options, 1000) == PLAIN | more | on_cpu


def test_the_extension_is_where_vllm_looks_for_it():
    assert f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}" == WORKER_EXTENSION


def test_room_for_keys_and_values_on_a_cpu(family_folder):
    folder: Path = family_folder("qwen2-tied")  # of 128 positions
    # 8 sequences of one block of 128 tokens, and two blocks more: 3 layers, 2 heads of 12, keys and values of 2 bytes.
    block = 128 * 3 * 2 * 12 * 2 * 2
    assert cache_bytes(folder, 8, 2) == cache_bytes(folder, 8, 2, longest=64) == 10 * block
    assert cache_bytes(folder, 8, 2, longest=10**6) == 10 * block, "no more than the model's context"
    assert cache_bytes(folder, 10**9, 4) == CPU_CACHE
    assert cache_bytes(family_folder("gpt2"), 1, 4) == CPU_CACHE


def test_what_vllm_is_told_of_other_engines():
    found = transfer_arguments(Transfer("kv_consumer", "10.0.0.1"), on_cpu=False)
    assert (found["kv_connector"], found["kv_role"]) == ("NixlConnector", "kv_consumer")
    assert (found["kv_buffer_device"], found["kv_load_failure_policy"]) == ("cuda", "recompute")
    assert transfer_arguments(Transfer("kv_producer", "::1"), on_cpu=True)["kv_buffer_device"] == "cpu"


def test_keys_and_values_are_taken_only_of_the_weights_that_sample_and_as_long_as_they_are_held():
    request = GenerationRequest("one", np.zeros(30, np.int32), SamplingParams(5))
    assert place_for_vllm(request, 3, 100.0) is None
    place = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}
    prefilled = replace(request, prefilled=Prefilled(3, 100.0, place))
    found = place_for_vllm(prefilled, 3, 100.0)
    assert found == place
    assert found is not place, "vLLM writes into it, and a request may begin again"
    assert place_for_vllm(prefilled, 4, 100.0) is None, "other weights"
    assert place_for_vllm(prefilled, 3, 100.1) is None, "too late"
    asked = place_for_vllm(replace(request, hand_over=True), 3, 100.0)
    assert asked == {"do_remote_decode": True, "do_remote_prefill": False}


def test_cores_of_several_workers():
    assert cpu_shares([0, 1], 2) == "0|1"
    assert cpu_shares([2, 3, 5, 7, 9], 2) == "2,3|5,7"
    assert cpu_shares([4], 2) == "4|4"
    assert cpu_shares([4, 6], 4) == "4|6|4|6"


def test_what_vllm_is_told_of_a_request():
    params = SamplingParams(100, 0.5, 0.9, 7, frozenset({9, 3}))
    request = GenerationRequest("one", np.zeros(30, np.int32), params, 2**64 + 5)
    found = sampling_arguments(request, context=64)
    assert found["max_tokens"] == 34
    assert (found["temperature"], found["top_p"], found["top_k"]) == (0.5, 0.9, 7)
    assert (found["stop_token_ids"], found["ignore_eos"]) == ([3, 9], True)
    assert 0 <= found["seed"] < 2**63
    assert sampling_arguments(request, 64, seeded=False) == found | {"seed": None}
    assert sampling_arguments(request, context=1000)["max_tokens"] == 100
