"""What was measured of one run, as it is taken to be of another one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rl_api.planner.profile import Memories, RunProfile
from rl_api.planner.stations import as_many_workers
from rl_api.run import RunSpec
from rl_api.sizes.memory import ACCELERATOR_OVERHEAD
from rl_api.sizes.sampler import UTILIZATION


def of_run(profile: RunProfile, spec: RunSpec, memory: float | None = None) -> RunProfile:
    """The profile with the batch, the staleness, the limits and the task's workers of `spec`, and with what its processes
    take of accelerators.

    `memory`: bytes of one of them, None: as the profile has it.
    """
    limit = spec.sampler.max_new_tokens
    memory = profile.devices.memory if memory is None else memory
    members = spec.algorithm.group_size / profile.group_size
    profile = as_many_workers(profile, spec)
    return profile.model_copy(
        update={
            "devices": profile.devices.model_copy(update={"memory": memory}),
            "group_size": spec.algorithm.group_size,
            "prompts_per_step": spec.algorithm.prompts_per_step,
            "max_staleness": spec.buffer.max_staleness,
            "lengths": under_limit(profile.lengths, profile.limit, limit),
            "limit": limit,
            "score_seconds": profile.score_seconds * members,
            "judge_seconds": profile.judge_seconds * members,
            "memory": profile.memory if memory is None else _memories(profile.memory, spec, memory),
        }
    )


def under_limit(lengths: Sequence[int], measured: int | None, limit: int) -> tuple[int, ...]:
    """Tokens of answers as they are with the longest one allowed at `limit`, where it was at `measured`, None: nowhere.

    A lower one cuts those that are longer. A higher one leaves those alone that have ended by themselves; how long the
    others would become nobody knows: they are taken to reach it too, in proportion.
    """
    return tuple(
        limit if measured is not None and length >= measured else min(length, limit) for length in lengths
    )


def _memories(measured: Memories, spec: RunSpec, memory: float) -> Memories:
    """With what `rltrain plan` takes processes on accelerators to need beside tensors, where nobody measured it."""
    learner, sampler = (
        one.model_copy(update={"kept": one.kept or float(ACCELERATOR_OVERHEAD)})
        for one in (measured.learner, measured.sampler)
    )
    share = (spec.sampler.gpu_memory_utilization or UTILIZATION) if spec.sampler.engine == "vllm" else 0.0
    return Memories(
        learner=learner.model_copy(update={"pass_tokens": spec.learner.tokens_per_micro_batch}),
        sampler=sampler.model_copy(update={"least": share * memory}),
    )
