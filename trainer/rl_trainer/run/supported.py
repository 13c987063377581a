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
    longest, budget, processes = (
        spec.sampler.max_new_tokens,
        spec.learner.tokens_per_micro_batch,
        spec.learner.context_size,
    )
    if longest <= budget * processes:
        return None
    shared = "" if processes == 1 else f" and learner.contextSize {processes}"
    return (
        f"sampler.maxNewTokens is {longest}, learner.tokensPerMicroBatch {budget}{shared}: a longer sequence is a pass "
        f"of its own, of {-(-longest // processes)} tokens in each learner process that has a part of it; plan memory for "
        f"it, or set learner.contextSize: {-(-longest // budget)}, or more, a divisor of learner processes and of heads"
    )
