"""What is said where vLLM cannot run, and what it is told where it can; without vLLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_api.errors import InvalidConfig
from rl_trainer.rollout.engines import vllm_needs
from rl_trainer.rollout.engines.base import GenerationRequest, Prefilled, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm import (
    CPU_CACHE,
    cache_bytes,
    cpu_shares,
    engine_arguments,
    place_for_vllm,
    sampling_arguments,
    transfer_arguments,
)
from rl_trainer.rollout.engines.vllm_needs import (
    COMMAND,
    ONE_DEVICE,
    SERVICE,
    Transfer,
    VllmOptions,
    check_device,
    check_installed,
    check_version,
)


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, family_folder):
    monkeypatch.setattr(vllm_needs, "find_spec", lambda name: None)
    sentence = (
        r"^spec\.sampler\.engine: found vllm, which is not installed where this sampler runs; install it .*, "
        r"or set sampler\.engine: torch$"
    )
    with pytest.raises(InvalidConfig, match=sentence):
        check_installed()
    with pytest.raises(InvalidConfig, match=sentence):
        create_engine(family_folder("qwen2-tied"), kind="vllm", slots=1)
    monkeypatch.setattr(vllm_needs, "find_spec", lambda name: SimpleNamespace(origin="vllm/__init__.py"))
    check_installed()


def test_a_folder_of_its_name_is_not_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidConfig, match="which is not installed where this sampler runs"):
        check_installed()


def test_versions():
    check_version("0.32.0")
    check_version("0.32.4+cpu")
    for version in ("0.31.9", "0.33.0", "0.320.0"):
        with pytest.raises(InvalidConfig, match=rf"found vllm, and vLLM {version} is installed, not 0\.32; "):
            check_version(version)


def test_devices():
    check_device(has_gpu=True, built_for_cpu=False)
    check_device(has_gpu=False, built_for_cpu=True)
    with pytest.raises(InvalidConfig, match="a build for CPUs, and this sampler has a GPU; install vllm"):
        check_device(has_gpu=True, built_for_cpu=True)
    with pytest.raises(
        InvalidConfig, match="a build for GPUs, and this sampler has none; let there be a GPU"
    ):
        check_device(has_gpu=False, built_for_cpu=False)


def test_servers_are_told_by_their_own_fields(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        InvalidConfig, match=r"^spec\.engine: found vllm, installed in a build for GPUs, and this copy"
    ):
        check_device(has_gpu=False, built_for_cpu=False, asker=SERVICE)
    with pytest.raises(
        InvalidConfig, match=r"^--engine: found vllm, and vLLM 1\.0 .*, or take --engine torch$"
    ):
        check_version("1.0", COMMAND)
    monkeypatch.setattr(vllm_needs, "find_spec", lambda name: None)
    with pytest.raises(
        InvalidConfig, match=r"^--engine: found vllm, which is not installed where this command runs; "
    ):
        check_installed(COMMAND)


def test_what_hands_keys_and_values_over_is_asked_for_where_it_is_needed(monkeypatch: pytest.MonkeyPatch):
    there = {"vllm": SimpleNamespace(origin="vllm/__init__.py")}
    monkeypatch.setattr(vllm_needs, "find_spec", there.get)
    check_installed(SERVICE)
    with pytest.raises(
        InvalidConfig,
        match=r"^spec\.prefill: found copies for prompts, .* NIXL, which is not installed where this copy",
    ):
        check_installed(SERVICE, transfer=True)
    there["nixl"] = SimpleNamespace(origin="nixl/__init__.py")
    check_installed(SERVICE, transfer=True)
    del there["vllm"]
    with pytest.raises(InvalidConfig, match=r"^spec\.engine: found vllm, which is not installed"):
        check_installed(SERVICE, transfer=True)


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
    assert sampling_arguments(request, context=1000)["max_tokens"] == 100


def test_what_vllm_is_told_of_the_engine(family_folder):
    folder: Path = family_folder("qwen2-tied")  # of 128 positions
    on_cpu = engine_arguments(folder, 8, torch.bfloat16, True, ONE_DEVICE)
    assert (on_cpu["trust_remote_code"], on_cpu["load_format"]) == (False, "safetensors")
    assert (on_cpu["dtype"], on_cpu["max_num_seqs"], on_cpu["max_model_len"]) == ("bfloat16", 8, -1)
    assert (on_cpu["enforce_eager"], on_cpu["enable_chunked_prefill"]) == (True, False)
    # 8 sequences of one block of 128 tokens, and two blocks more: 3 layers, 2 heads of 12, keys and values of 2 bytes.
    assert on_cpu["kv_cache_memory_bytes"] == 10 * 128 * 3 * 2 * 12 * 2 * 2
    assert on_cpu["logprobs_mode"] == "processed_logprobs", "at the temperature"
    assert on_cpu["distributed_executor_backend"] == "uni"
    on_gpu = engine_arguments(folder, 8, torch.float32, False, VllmOptions(4, 2))
    assert (on_gpu["tensor_parallel_size"], on_gpu["pipeline_parallel_size"]) == (4, 2)
    assert on_gpu["distributed_executor_backend"] == "mp"
    assert (on_gpu["dtype"], on_gpu["max_model_len"]) == ("float32", -1)
    assert not {"enforce_eager", "enable_chunked_prefill", "kv_cache_memory_bytes"} & set(on_gpu)
    assert cache_bytes(folder, 10**9, torch.float32) == CPU_CACHE
    assert cache_bytes(family_folder("gpt2"), 1, torch.float32) == CPU_CACHE
