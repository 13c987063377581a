"""What of the contract this version of the trainer cannot run. Pure."""

from __future__ import annotations

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_trainer.rollout.engines.vllm_needs import check_temperature


def check_supported(spec: RunSpec) -> None:
    """Refuses settings of the contract that this version of the trainer does not have.

    Raises:
        InvalidConfig: names the first of them.
    """
    sampler = spec.sampler
    if sampler.engine in ("vllm", "endpoint"):  # a server is vLLM's as well
        check_temperature(sampler.temperature, sampler.engine)
    if sampler.engine != "vllm" and sampler.tensor_parallel_size > 1:
        raise InvalidConfig(
            f"spec.sampler.tensorParallelSize: found {sampler.tensor_parallel_size}, with sampler.engine {sampler.engine} "
            "this version of rltrain can run 1; set sampler.engine: vllm"
        )


def long_sequences(spec: RunSpec) -> str | None:
    """What to tell of sequences that may be longer than a pass of the learner; None: there is nothing to tell."""
    longest, budget = spec.sampler.max_new_tokens, spec.learner.tokens_per_micro_batch
    if longest <= budget:
        return None
    return (
        f"sampler.maxNewTokens is {longest}, learner.tokensPerMicroBatch {budget}: a longer sequence is a pass of its own, "
        "whole on one rank, as sequences are not split over ranks (context parallelism); plan the learner's memory for it"
    )
