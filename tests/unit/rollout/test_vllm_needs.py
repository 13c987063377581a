"""What is said where vLLM cannot run, or not as it is asked to; without vLLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_trainer.rollout.engines import vllm_needs
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm_needs import (
    COMMAND,
    ONE_DEVICE,
    SERVICE,
    Pods,
    VllmOptions,
    check_device,
    check_installed,
    check_model,
    check_quantization,
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


def run_spec(sampler: dict[str, Any], staleness: int = 0) -> RunSpec:
    task = {"environment": "reasoning-gym", "name": "chain_sum"}
    buffer = {"maxStaleness": staleness}
    return RunSpec.model_validate(
        {"model": {"source": "tiny"}, "task": task, "sampler": sampler, "buffer": buffer}
    )


def test_the_options_are_those_of_the_sampler():
    assert VllmOptions.of(run_spec({"engine": "vllm"})) == ONE_DEVICE
    asked = {"tensorParallelSize": 4, "pipelineParallelSize": 2, "maxModelLen": 8192, "quantization": "fp8"}
    found = VllmOptions.of(run_spec(asked | {"gpuMemoryUtilization": 0.5}))
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.devices) == (4, 2, 8)
    assert (found.max_model_len, found.gpu_memory_utilization, found.quantization) == (8192, 0.5, "fp8")
    assert (found.pods, found.devices_here) == (None, 8), "who starts its pods knows them"
    assert replace(found, pods=Pods(2, 0, "10.0.0.1", "10.0.0.1", 29500)).devices_here == 4


def test_requests_have_generators_of_their_own_where_a_run_is_repeatable():
    assert VllmOptions.of(run_spec({}, staleness=0), seed=7).seed is None
    assert VllmOptions.of(run_spec({}, staleness=1), seed=7).seed == 7


SHAPE = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 24,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
}


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({}, VllmOptions(2, 24, max_model_len=32768)),
        ({"num_key_value_heads": 1}, VllmOptions(16)),
        ({"num_key_value_heads": None}, VllmOptions(16)),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, VllmOptions(max_model_len=131072)),
        ({"rope_parameters": {"rope_type": "yarn"}}, VllmOptions(max_model_len=131072)),
        ({"num_attention_heads": None}, VllmOptions(5)),
        ({"num_experts": 8, "intermediate_size": 4865}, VllmOptions(8)),
    ],
)
def test_models_that_vllm_can_divide(shape: dict[str, Any], options: VllmOptions):
    check_model(SHAPE | shape, options)
    check_model({"text_config": SHAPE | shape}, options)


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        (
            {},
            VllmOptions(3),
            "spec.sampler.tensorParallelSize: found 3, allowed with this model: 1, 2, 4, 8 or 16, as its 16 attention heads "
            "and its matrices are divided evenly",
        ),
        (
            {"num_key_value_heads": 3},
            VllmOptions(2, asker=COMMAND),
            "--tensor-parallel-size: found 2, allowed with this model: 1, as its 16",
        ),
        (
            {"intermediate_size": 4866},
            VllmOptions(4, asker=SERVICE),
            "spec.tensorParallelSize: found 4, allowed with this model: 1 or 2, as its 16",
        ),
        (
            {},
            VllmOptions(1, 25),
            "spec.sampler.pipelineParallelSize: found 25, allowed with this model: at most 24, as each stage has one of its "
            "layers or more",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}},
            VllmOptions(max_model_len=32769),
            "spec.sampler.maxModelLen: found 32769, allowed with this model: at most 32768, its context",
        ),
    ],
)
def test_models_that_vllm_cannot_divide(shape: dict[str, Any], options: VllmOptions, sentence: str):
    with pytest.raises(InvalidConfig) as refused:
        check_model(SHAPE | shape, options)
    assert str(refused.value).startswith(sentence)


def test_quantised_weights_are_for_gpus():
    check_quantization("fp8", on_cpu=False)
    check_quantization("none", on_cpu=True)
    with pytest.raises(
        InvalidConfig, match=r"^spec\.sampler\.quantization: found 'fp8', allowed on CPUs: none; let"
    ):
        check_quantization("fp8", on_cpu=True)


def test_a_model_is_looked_at_before_vllm_is(family_folder):
    with pytest.raises(
        InvalidConfig, match=r"^spec\.sampler\.tensorParallelSize: found 64, allowed with this model: "
    ):
        create_engine(family_folder("qwen2-tied"), kind="vllm", slots=1, options=VllmOptions(64))
