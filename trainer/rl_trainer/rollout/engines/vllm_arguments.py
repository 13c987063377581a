"""What vLLM is told: arguments of an engine, of its requests and of what it exchanges with others. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rl_trainer.model.config import is_supported, read_config
from rl_trainer.rollout.engines.base import GenerationRequest
from rl_trainer.rollout.engines.vllm_needs import Transfer, VllmOptions

WORKER_EXTENSION: Final = "rl_trainer.rollout.engines.vllm_worker.WorkerExtension"
# Of a GPU's memory, for weights, activations and the cache of keys and values: a sampler has its GPUs to itself.
GPU_MEMORY_SHARE = 0.9
# Bytes for keys and values on a CPU: what all slots may need, and no more than this.
CPU_CACHE = 2 << 30
_CPU_BLOCK = 128  # tokens, vLLM's own choice there
# How long an engine holds keys and values that nobody has fetched.
LEASE_SECONDS = 60.0


def engine_arguments(
    folder: Path, slots: int, dtype: str, options: VllmOptions, cpu_cache: int | None = None
) -> dict[str, Any]:
    """vLLM's `EngineArgs` for one engine.

    Args:
        folder: the model's.
        slots: sequences in flight.
        dtype: as torch names it, without `torch.`.
        options: see there.
        cpu_cache: bytes for keys and values on a CPU; None: the engine is on GPUs.
    """
    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "load_format": "safetensors",  # vLLM's others are pickles, or it guesses
        # The folder's own defaults (end tokens, penalties, ...) would change what our parameters say.
        "generation_config": "vllm",
        "dtype": dtype,
        "max_num_seqs": slots,
        # -1: the model's context, or as much of it as there is memory for
        "max_model_len": -1 if options.max_model_len is None else options.max_model_len,
        # At the sampling temperature; that they are over all tokens is the extension's doing.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
        "enable_prefix_caching": True,
        "async_scheduling": False,  # a step gives the tokens that it samples, not those of the step before
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "distributed_executor_backend": "uni" if options.devices == 1 else "mp",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "gpu_memory_utilization": options.gpu_memory_utilization or GPU_MEMORY_SHARE,
    }
    if options.sleeps and cpu_cache is None:  # its build for CPUs has none of that
        arguments["enable_sleep_mode"] = True
    if options.quantization != "none":
        arguments["quantization"] = options.quantization
    if options.seed is not None:
        arguments["seed"] = options.seed
    if options.pods is not None:
        # vLLM's own way over several machines, with processes of its own on each. Its way over Ray wants a bundle for each
        # worker, beside the engine's, and knows no CPUs.
        pods = options.pods
        arguments |= {"nnodes": pods.count, "node_rank": pods.rank}
        arguments |= {"master_addr": pods.first, "master_port": pods.port}
        # By how many there are vLLM tells which ranks are in this pod; a CPU has one device by its count.
        arguments["device_ids"] = list(range(options.devices_here))
    if cpu_cache is not None:
        # Compiling takes longer than most runs here. A prompt in pieces would draw from its sequence's generator for
        # each, which on a CPU cannot be set back.
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
        # Where the variable VLLM_CPU_KVCACHE_SPACE is set, vLLM takes that.
        arguments["kv_cache_memory_bytes"] = cpu_cache
    return arguments


def cache_bytes(folder: Path, slots: int, itemsize: int, longest: int | None = None) -> int:
    """Bytes for the keys and values of all slots at their longest, in the CPU's blocks; at most CPU_CACHE.

    Args:
        folder: the model's.
        slots: sequences in flight.
        itemsize: bytes of a number.
        longest: tokens of a sequence; None: the model's context.
    """
    if not is_supported(folder):
        return CPU_CACHE
    config = read_config(folder)
    token = 2 * config.layers * config.kv_heads * config.head_dim * itemsize
    positions = config.max_positions if longest is None else min(longest, config.max_positions)
    blocks = slots * -(-positions // _CPU_BLOCK) + 2  # vLLM keeps one for itself
    return min(CPU_CACHE, blocks * _CPU_BLOCK * token)


def sampling_arguments(request: GenerationRequest, context: int, seeded: bool = True) -> dict[str, Any]:
    """vLLM's `SamplingParams` for one request: its stop tokens and its length end it, and nothing else. Not `seeded`: it
    draws from the engine's generator, in one go with all others."""
    params = request.params
    return {
        "max_tokens": min(params.max_new_tokens, context - len(request.prompt)),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "seed": request.generator_seed if seeded else None,
        "stop_token_ids": sorted(params.stop_token_ids),
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": params.top_logprobs,  # beside that of the sampled token
        "flat_logprobs": True,
    }


def transfer_arguments(transfer: Transfer, on_cpu: bool) -> dict[str, Any]:
    """vLLM's `KVTransferConfig`."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": transfer.role,
        "kv_buffer_device": "cpu" if on_cpu else "cuda",
        # What cannot be fetched is computed, whatever has become of the other engine.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": int(LEASE_SECONDS)},
    }


def place_for_vllm(request: GenerationRequest, version: int, now: float) -> dict[str, Any] | None:
    """`kv_transfer_params` of a request that begins `now`, on weights of `version`; None: it is no other engine's affair."""
    if request.hand_over:
        return {"do_remote_decode": True, "do_remote_prefill": False}
    found = request.prefilled
    if found is None or found.version != version or now > found.until:
        return None
    return dict(found.place)


def without(place: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """`place` but for one of its fields."""
    return None if place is None else {key: value for key, value in place.items() if key != name}


def cpu_shares(cores: Sequence[int], workers: int) -> str:
    """Cores of each of `workers` as vLLM takes them; where there are fewer, several share one."""
    share = max(1, len(cores) // workers)
    parts = [cores[worker * share % len(cores) :][:share] for worker in range(workers)]
    return "|".join(",".join(map(str, part)) for part in parts)
