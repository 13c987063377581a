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
    missing = (
        ("sampler.tensorParallelSize", spec.sampler.tensor_parallel_size, (1,)),
        ("placement.mode", spec.placement.mode, ("auto", "disaggregated")),
    )
    for field, found, allowed in missing:
        if found not in allowed:
            values = " or ".join(str(value) for value in allowed)
            raise InvalidConfig(f"spec.{field}: found {found}, this version of rltrain can run {values}")
    if spec.sampler.engine == "vllm":
        check_temperature(spec.sampler.temperature)


def long_sequences(spec: RunSpec) -> str | None:
    """What to tell of sequences that may be longer than a pass of the learner; None: there is nothing to tell."""
    longest, budget = spec.sampler.max_new_tokens, spec.learner.tokens_per_micro_batch
    if longest <= budget:
        return None
    return (
        f"sampler.maxNewTokens is {longest}, learner.tokensPerMicroBatch {budget}: a longer sequence is a pass of its own, "
        "whole on one rank, as sequences are not split over ranks (context parallelism); plan the learner's memory for it"
    )
