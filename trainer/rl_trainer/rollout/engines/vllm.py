"""vLLM behind `rl_trainer.rollout.engines.base.Engine`: on one device in this process, on several in a process for each, one
step at a time.

Requests wait here until a slot is free; vLLM is given only what it may begin at once. Every request carries a salt that
changes with the weights, so that vLLM's prefix cache, which spares the members of a group their prompt, never answers with
keys and values of older ones, while sequences in flight keep theirs. New weights go through vLLM's own way of loading them
in place, layer by layer, which repacks what the device wants repacked; a block of them at a time goes to its workers.

An engine may hand the keys and values of its prompts over to others, or take theirs (`Transfer`): vLLM's NixlConnector reads
them from the other engine's memory, which holds them for LEASE_SECONDS, and computes what it cannot get. Weights that change
leave those of others where they are: they are taken over only for the version that they are of.

vLLM is imported when an engine is opened, with the settings below: it reads them when it is imported.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_api.errors import ModelError, RLTrainError
from rl_trainer.error_text import first_line
from rl_trainer.model.config import read_json
from rl_trainer.model.weight_files import weight_files
from rl_trainer.rollout.engines.base import (
    Engine,
    GenerationProgress,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Top,
)
from rl_trainer.rollout.engines.sequences import Sequences
from rl_trainer.rollout.engines.vllm_arguments import (
    cache_bytes,
    cpu_shares,
    engine_arguments,
    place_for_vllm,
    sampling_arguments,
    transfer_arguments,
    without,
)
from rl_trainer.rollout.engines.vllm_needs import (
    VllmOptions,
    check_device,
    check_installed,
    check_model,
    check_quantization,
    check_version,
)
from rl_trainer.rollout.engines.weight_check import Check, check_of
from rl_trainer.weights.payload import BLOCK_BYTES, shapes_of

# Between two looks at whether those of another engine have come, where there is nothing else to do.
_ARRIVAL_SECONDS = 0.001
_CACHED = "remote_prefill_cached_tokens"
# Nothing printed but errors, nothing reported to anybody.
_SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
}


class VllmEngine(Engine):
    """Implements `rl_trainer.rollout.engines.base.Engine`; see the module for how."""

    reads_again = True

    def __init__(
        self,
        engine: Any,
        check: Check,
        *,
        slots: int,
        seeded: bool = True,
    ) -> None:
        """`engine`: vLLM's `LLMEngine`; `check`: refuses weights that are not the model's by names, shapes and a label;
        `seeded`: each request draws with a generator of its own."""
        model = engine.vllm_config.model_config
        # The context: what fits into the memory for keys and values, which vLLM has found out by now.
        super().__init__(slots, int(model.get_vocab_size()), model.max_model_len)
        self._engine = engine
        self._ended: list[GenerationResult] = []
        self._check, self._seeded = check, seeded
        self._sequences = Sequences(slots)
        self._loads = 0
        self._tainted = False
        self._sleeps, self._slept = bool(getattr(model, "enable_sleep_mode", False)), 0
        self._transfers = engine.vllm_config.kv_transfer_config is not None
        # Sequences that begin with keys and values of another engine, and what that one had known of them.
        self._taking: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        slots: int,
        dtype: torch.dtype,
        device: str,
        options: VllmOptions,
    ) -> VllmEngine:
        """An engine for a Hugging Face folder.

        Raises:
            InvalidConfig: vLLM is not installed, of another version, or built for another device; or it cannot divide or
                quantise the model as the options say.
            ModelError: it cannot open the folder.
        """
        if slots < 1:
            raise ValueError(f"slots is {slots}; an engine needs at least 1")
        vllm, arguments = _prepare(folder, slots, dtype, device, options)
        from vllm.usage.usage_lib import UsageContext

        try:
            engine = vllm.LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
            engine.collective_rpc("rltrain_end_with_its_parent")
            engine.collective_rpc("rltrain_measure_all_tokens")
            engine.collective_rpc("rltrain_take_from_the_stage_before")
            check = check_of(folder, _ties_the_head(engine))
            opened = cls(engine, check, slots=slots, seeded=options.seed is None)
            opened._warm_up()
        except Exception as error:  # every layer of vLLM raises its own kinds
            raise ModelError(f"model folder {folder}: vLLM cannot open it ({first_line(error)})") from error
        if _ties_the_head(engine) and any(engine.collective_rpc("rltrain_has_own_head")):
            raise ModelError(
                f"model folder {folder}: config.json ties the output head to the embeddings, but the weights hold another "
                "lm_head.weight, which vLLM would keep; remove one of the two"
            )
        return opened

    @property
    def active(self) -> int:
        """Sequences in flight now, and those that have ended since the last step."""
        return self._sequences.active + len(self._ended)

    def progress(self, known: Mapping[Hashable, int]) -> list[GenerationProgress]:
        """See `Engine.progress`."""
        return self._sequences.progress(known)

    def step(self) -> list[GenerationResult]:
        """Refill free slots, then let vLLM do one step.

        Mostly that is one token for every active sequence; where more prompts begin than go through the model at once, or
        keys and values run out of room, some wait for a later step.
        """
        self._require("a step")
        from vllm.inputs.engine import tokens_input

        started, begun = time.perf_counter(), 0
        active, cached = self._sequences.active, self._sequences.tokens
        for key, request in self._sequences.admit(self._waiting):
            begun += len(request.prompt)
            prompt = tokens_input(request.prompt.tolist(), cache_salt=str(self._loads))
            place = place_for_vllm(request, self.version, time.monotonic()) if self._transfers else None
            if place is not None and request.prefilled is not None:
                self._taking[key] = request.prefilled.cached
            self._engine.add_request(key, prompt, self._params(request, place))
        if self._sequences.active:
            self._advance()
            seconds = time.perf_counter() - started
            if begun:  # a prompt's tokens and one of each sequence go through the model together
                self.meter.mixed(seconds, begun)
            else:
                self.meter.decoded(seconds, active, cached)
        results, self._ended = self._ended, []
        return results

    def _advance(self) -> None:
        """One step of vLLM's."""
        outputs = self._engine.step()
        if self._taking and not outputs:
            time.sleep(_ARRIVAL_SECONDS)
        for output in outputs:
            piece = output.outputs[0]
            logprobs, top = _logprobs(piece.logprobs)
            self._tainted = self._tainted or any(map(math.isnan, logprobs))
            key, known, taken = output.request_id, output.num_cached_tokens, 0
            if key in self._taking:
                known, taken = min(known, self._taking[key]), known
            self._sequences.record(key, piece.token_ids, logprobs, self.version, top, known, taken)
            if output.finished:
                if piece.finish_reason not in ("stop", "length"):
                    raise RLTrainError(f"vLLM gave a sequence up ({piece.finish_reason})")
                ended = self._sequences.end(key)
                # What it has known of the prompt is `cached`: vLLM would say it in place of what was taken over.
                ended.place = without(output.kv_transfer_params, _CACHED)
                self._ended.append(ended)
                self._taking.pop(key, None)

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """See `Engine.load_weights`."""
        self._require("weights are loaded")
        where = f"weights of version {version}"
        self._check(shapes_of(tensors), where)
        self._settle()
        # Begun, but no token yet: all of its prompt is to be read with the new weights.
        self._forget(self._sequences.take_back(self._waiting))
        try:
            self._engine.collective_rpc("rltrain_begin_weights")
            for block in self._blocks(tensors):
                self._engine.collective_rpc("rltrain_load_weights", args=(block,))
            self._engine.collective_rpc("rltrain_end_weights")
            self._engine.collective_rpc("rltrain_repack_heads")
        except Exception as error:
            raise ModelError(f"{where}: vLLM cannot load them ({first_line(error)})") from error
        self._loads += 1
        if self._tainted:
            self._engine.collective_rpc("rltrain_clear_cache")
            self._tainted = False
        self.version = version

    def offload(self) -> int:
        """See `Engine.offload`. Weights go to main memory; keys and values are dropped, and computed anew of the tokens that
        are there: those that follow may differ in the last bits of what they are drawn from.
        """
        if self._slept or not self._sleeps:
            return 0
        self._settle()
        before = sum(self._engine.collective_rpc("rltrain_free_bytes"))
        self._engine.sleep(level=1, mode="keep")  # of requests in flight: they are preempted, not aborted
        self._slept = max(1, sum(self._engine.collective_rpc("rltrain_free_bytes")) - before)
        return self._slept

    def onload(self) -> int:
        """See `Engine.onload`."""
        if not self._slept:
            return 0
        self._engine.wake_up()
        # Memory that is mapped anew holds whatever it does, and what is no number would spoil sequences, masked or not.
        self._engine.collective_rpc("rltrain_clear_cache")
        size, self._slept = self._slept, 0
        return size

    def _require(self, doing: str) -> None:
        if self._slept:
            raise RLTrainError(f"the sampler's engine: vLLM sleeps; onload it before {doing}")

    def _blocks(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Some tensors at a time, which all workers have loaded before the next ones are made. Those in processes of their
        own get them pickled, and of a view its whole storage: for them each tensor has its own."""
        alone = self._engine.vllm_config.parallel_config.world_size == 1
        block: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name, value in tensors.items():
            if block and size + value.nbytes > BLOCK_BYTES:
                yield block
                block, size = [], 0
            block.append((name, value if alone else value.clone()))
            size += value.nbytes
        yield block

    def abort(self, ids: Sequence[Hashable]) -> None:
        """See `Engine.abort`."""
        super().abort(ids)
        unwanted = set(ids)
        self._ended = [result for result in self._ended if result.id not in unwanted]
        self._forget(self._sequences.abort(ids))

    def _forget(self, keys: Sequence[str]) -> None:
        self._engine.abort_request(keys)
        for key in keys:
            self._taking.pop(key, None)

    def _settle(self) -> None:
        """Let batches that are between the stages of a pipeline come out: their tokens are of the weights as they are."""
        core = self._engine.engine_core.engine_core
        if not core.batch_queue:
            return
        from vllm.v1.core.sched.interface import PauseState

        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)  # nothing new goes in
        try:
            while core.batch_queue:
                self._advance()
        finally:
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _warm_up(self) -> None:
        """One token: what of the model the device cannot compute is found now, not in the first rollout."""
        self.add([GenerationRequest("warm-up", np.zeros(1, np.int32), SamplingParams(1))])
        while self.active or self.waiting:
            self.step()

    def _params(self, request: GenerationRequest, place: dict[str, Any] | None) -> Any:
        from vllm import sampling_params as theirs

        return theirs.SamplingParams(
            output_kind=theirs.RequestOutputKind.DELTA,
            extra_args=None if place is None else {"kv_transfer_params": place},
            **sampling_arguments(request, self.context, self._seeded),
        )


def open_workers(folder: Path, slots: int, dtype: torch.dtype, device: str, options: VllmOptions) -> Any:
    """vLLM's `MultiprocExecutor` with the workers of a pod other than the engine's, when they have loaded the model; see
    `VllmEngine.open` for the errors."""
    _, arguments = _prepare(folder, slots, dtype, device, options)
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    try:
        config = arguments.create_engine_config(usage_context=UsageContext.LLM_CLASS, headless=True)
        return MultiprocExecutor(config, monitor_workers=False)
    except Exception as error:  # every layer of vLLM raises its own kinds
        raise ModelError(
            f"model folder {folder}: vLLM cannot open its part of it ({first_line(error)})"
        ) from error


def _prepare(
    folder: Path, slots: int, dtype: torch.dtype, device: str, options: VllmOptions
) -> tuple[Any, Any]:
    """vLLM, imported, and its `EngineArgs` for an engine of this folder; see `VllmEngine.open` for the errors."""
    on_cpu = torch.device(device).type == "cpu"
    check_model(read_json(folder / "config.json"), options)  # what is wrong with it is said in our words
    weight_files(folder)
    check_quantization(options.quantization, on_cpu)
    vllm = _import(on_cpu, options)
    cpu_cache = cache_bytes(folder, slots, dtype.itemsize, options.max_model_len) if on_cpu else None
    arguments = engine_arguments(folder, slots, str(dtype).removeprefix("torch."), options, cpu_cache)
    if options.transfer is not None:
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(**transfer_arguments(options.transfer, on_cpu))
        # Where others ask for what they need to know of this engine's memory.
        os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = options.transfer.host
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port(options.transfer.host))
    return vllm, vllm.EngineArgs(**arguments)


def free_port(host: str) -> int:
    """A port of this machine's that nobody listens at now, at its address `host`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _logprobs(flat: Any) -> tuple[list[float], list[Top]]:
    """Log-probs of the sampled tokens, and of the most probable ones where they are wanted, of vLLM's `FlatLogprobs`."""
    if flat is None:
        return [], []
    places = list(zip(flat.start_indices, flat.end_indices, strict=True))
    top = [
        tuple(zip(flat.token_ids[start + 1 : end], flat.logprobs[start + 1 : end], strict=True))
        for start, end in places
        if end > start + 1
    ]
    return [flat.logprobs[start] for start, _ in places], top


def _import(on_cpu: bool, options: VllmOptions) -> Any:
    """vLLM, quiet, in this process; see `VllmEngine.open` for the errors."""
    check_installed(options.asker, options.transfer is not None)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process: steps and weights are ours to time
    # Processes of its own begin anew: a fork of this one would have its locks, and none of its threads.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # The runner that its build for CPUs has, whose sampler `vllm_worker` knows.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if options.pods is not None:
        os.environ["VLLM_HOST_IP"] = options.pods.host  # what vLLM would find out is the way to the internet
    if on_cpu:
        # Its sampling has functions that are compiled on their first call, whatever `enforce_eager` says.
        torch._dynamo.config.disable = True
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the same in processes of its own
        if options.devices > 1:
            cores = cpu_shares(sorted(os.sched_getaffinity(0)), options.devices_here)
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)
    import vllm
    from vllm.platforms import current_platform

    check_version(vllm.__version__, options.asker)
    check_device(not on_cpu, current_platform.is_cpu(), options.asker)
    return vllm


def _ties_the_head(engine: Any) -> bool:
    """Whether config.json ties the output head to the embeddings; vLLM unties it where the weights hold a head as well."""
    model = engine.vllm_config.model_config
    return bool(
        model.hf_config.get_text_config().tie_word_embeddings or model.word_embeddings_untied_by_checkpoint
    )
