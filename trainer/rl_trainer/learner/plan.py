"""Which rank learns from which trajectory, in which mini-batch: a pure function of lengths and advantages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.learner.packing import mini_batches, split_groups
from rl_trainer.trajectory import Group


@dataclass(frozen=True)
class Member:
    """One trajectory of the batch: position of its group in the batch, position in the group, its advantage(s)."""

    group: int
    member: int
    advantage: Advantage


@dataclass(frozen=True)
class MiniBatchPlan:
    """One optimizer step: what each rank computes, and the denominators of the whole of it."""

    ranks: tuple[tuple[Member, ...], ...]
    denominators: LossDenominators


def plan_update(
    lengths: Sequence[Sequence[int]],
    sampled: Sequence[Sequence[int]],
    advantages: Sequence[Advantage],
    *,
    ranks: int,
    mini_batch_count: int = 1,
    epochs: int = 1,
    constant_length: int | None = None,
    left_out: Sequence[Sequence[bool]] | None = None,
    seed: int | Sequence[int] = 0,
) -> list[MiniBatchPlan]:
    """Cuts a batch into mini-batches (per epoch) and each of them over ranks, by whole groups and balanced by tokens.

    Args:
        lengths: per group, per member: tokens of the trajectory, prompt included.
        sampled: the same shape: tokens that are trained on.
        advantages: of the members of all groups, in the order of `lengths`: a number, or one per sampled token.
        ranks: data-parallel learners.
        mini_batch_count: optimizer steps per pass over the batch.
        epochs: passes over the batch.
        constant_length: for the loss aggregation `constant`.
        left_out: the shape of `lengths`, true: not trained on and in no denominator (its advantage has served as part
            of the baseline); None: all are trained on.
        seed: key of the shuffle between mini-batches; epoch and seed give the cut.

    Returns:
        `epochs * mini_batch_count` plans (fewer when there are fewer groups).
    """
    starts = [0, *itertools.accumulate(len(group) for group in lengths)]
    key = [seed] if isinstance(seed, int) else list(seed)
    plans = []
    for epoch in range(epochs):
        for chosen in mini_batches(len(lengths), mini_batch_count, seed=[*key, epoch]):
            members = [
                Member(group, member, advantages[starts[group] + member])
                for group in chosen
                for member in range(len(lengths[group]))
                if left_out is None or not left_out[group][member]
            ]
            parts = split_groups(
                [lengths[m.group][m.member] for m in members], [m.group for m in members], ranks
            )
            plans.append(
                MiniBatchPlan(
                    tuple(tuple(members[index] for index in part) for part in parts),
                    LossDenominators.from_lengths(
                        [sampled[m.group][m.member] for m in members], constant_length
                    ),
                )
            )
    return plans


def plan_groups(
    spec: RunSpec, groups: Sequence[Group], advantages: Sequence[Advantage], *, ranks: int, step: int
) -> list[MiniBatchPlan]:
    """`plan_update` of these groups as the run's algorithm has it, in training step `step`, counted from 0."""
    algorithm = spec.algorithm
    return plan_update(
        [group.total_lengths for group in groups],
        [group.lengths for group in groups],
        advantages,
        ranks=ranks,
        mini_batch_count=algorithm.mini_batches,
        epochs=algorithm.epochs,
        constant_length=constant_length(spec),
        left_out=[group.truncated for group in groups] if algorithm.overlong.mask_truncated else None,
        seed=(spec.seed, step),
    )


def constant_length(spec: RunSpec) -> int | None:
    """Denominator of the aggregation `constant` in tokens per sequence; None for the others."""
    loss = spec.algorithm.loss
    if loss.aggregation != "constant":
        return None
    return loss.constant_length or spec.sampler.max_new_tokens
