"""A training step in parts: how many groups learners begin with while others are still sampled. Pure."""

from __future__ import annotations

from rl_api.run import RunSpec


def part_groups(spec: RunSpec) -> int:
    """Groups in a part of a step: `placement.partGroups`, or all of them where the step is one part."""
    step, wanted = spec.algorithm.prompts_per_step, spec.placement.part_groups
    if wanted is None or needs_whole_batch(spec) is not None:
        return step
    return min(wanted, step)


def needs_whole_batch(spec: RunSpec) -> str | None:
    """Why learners cannot begin before the batch is whole, as part of a sentence; None: they can."""
    algorithm = spec.algorithm
    estimator = algorithm.advantage.estimator
    if estimator == "batchNormalized":
        return "algorithm.advantage.estimator batchNormalized normalises advantages over the whole batch"
    if estimator == "gae":
        return "algorithm.advantage.estimator gae whitens advantages over the whole batch"
    if algorithm.mini_batches > 1:
        return f"algorithm.miniBatches is {algorithm.mini_batches}, and mini-batches are drawn from the whole batch"
    if algorithm.epochs > 1:
        return f"algorithm.epochs is {algorithm.epochs}, and each of them is a pass over the whole batch"
    return None


def parts_sentence(spec: RunSpec) -> str | None:
    """What to tell of `placement.partGroups` where it does not hold; None: there is nothing to tell."""
    wanted, step = spec.placement.part_groups, spec.algorithm.prompts_per_step
    reason = needs_whole_batch(spec)
    if wanted is None or wanted >= step or reason is None:
        return None
    return f"placement.partGroups is {wanted}, but a part is the whole step of {step} groups: {reason}"
