"""Seconds and bytes of what a step does, from a profile. Pure.

    learning   alpha + perPass + (beta + logProb + value) x tokens / ranks for each part; allReduce and optimizer once a step
    contention work takes longer by a share for each other process that computes at once (processors of a node have their
               memory and its caches in common), and was measured beside as many as there were
    all-reduce 2 (n - 1) / n of the bytes pass each of n ranks in a ring, as (Patarasuk and Yuan 2009): scaled from the
               ranks measured. Where one rank was measured, once round takes as long as publishing: gradients are as large
               as the weights, and go from process to process on the same machines
    switch     a role that takes devices over from another one: in, awake, and out again. Where nobody shared devices it is
               not known, and not free: calls between actors, and bytes that are copied at the speed of the other role's
    memory     of one device: of roles that share it both where both stay, the larger where they take turns

How generation depends on samplers is `rl_api.planner.rollout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rl_api.planner.profile import RoleMemory, RunProfile, SwitchProfile

WAKE_SECONDS: Final = 0.004
"""Until a role that takes a device over works there, of runs that share none: two calls between actors of Ray."""

NEXT_PART_SECONDS: Final = 0.004
"""Of learners from the end of a part to the begin of the next one that is there: as many calls. No profile has it."""

COPIED_BYTES_PER_SECOND: Final = 1e9
"""Of tensors that leave a device, or come back, where neither role was measured: what one core copies at least."""


def learn_seconds(profile: RunProfile, tokens: float, ranks: int, samplers: float = 0.0) -> float:
    """Of one part of `tokens` prompt and answer tokens on `ranks` learner ranks, without what is once a step.

    `samplers`: how many of them decode meanwhile.
    """
    slower = learn_crowded(profile, ranks, samplers)
    return profile.learner.alpha + slower * pass_seconds(profile, tokens, ranks)


def pass_seconds(profile: RunProfile, tokens: float, ranks: int) -> float:
    """Of a part's passes, where as many compute at once as when they were measured."""
    learner = profile.learner
    return (learner.per_pass or 0.0) + learner.per_token * tokens / ranks


def learn_crowded(profile: RunProfile, ranks: int, samplers: float) -> float:
    """How much longer passes of each of `ranks` take than they were measured to, where `samplers` decode meanwhile."""
    return crowded(profile.learner.contention, ranks - 1 + samplers, profile.devices.learner_company)


def decode_crowded(profile: RunProfile, others: float) -> float:
    """How much longer decoding takes than it was measured to, where `others` compute at once."""
    return crowded(profile.decode.contention, others, profile.devices.sampler_company)


def crowded(contention: float | None, others: float, measured: float) -> float:
    """How much longer work takes beside `others` processes than beside `measured` of them, each costing the same share."""
    share = contention or 0.0
    return (1 + share * max(0.0, others)) / (1 + share * measured)


def next_part_seconds(profile: RunProfile) -> float:
    """What each part of a step costs but for its first, besides learning. A profile that is a prior leaves it out."""
    return NEXT_PART_SECONDS if profile.steps else 0.0


def update_seconds(profile: RunProfile, ranks: int) -> float:
    """Of what is once a step: gradients of all ranks together, of which one rank sends nothing, and the optimizer."""
    learner, measured = profile.learner, profile.devices.learner
    if measured > 1:
        return learner.optimizer + learner.all_reduce * _ring(ranks) / _ring(measured)
    # What one rank was measured to take was not sent: norms and the like.
    sent = profile.publish_seconds * _ring(ranks) if profile.steps else 0.0
    return learner.optimizer + learner.all_reduce + sent


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def step_learn_seconds(profile: RunProfile, ranks: int, parts: int = 1) -> float:
    """Of a whole step's learning in `parts` parts, without publishing."""
    each = learn_seconds(profile, profile.tokens / parts, ranks)
    return parts * each + (parts - 1) * next_part_seconds(profile) + update_seconds(profile, ranks)


@dataclass(frozen=True)
class Turn:
    """Seconds that it takes to hand shared devices over.

    Attributes:
        to_learner: samplers leave, learners come.
        to_sampler: learners leave, samplers come.
    """

    to_learner: float
    to_sampler: float


def turn(profile: RunProfile, swap: bool) -> Turn:
    """What a change of hands costs; `swap`: tensors move out and in, else they stay and only work changes."""
    learner, sampler = switches(profile)
    if not swap:
        return Turn(learner.wake, sampler.wake)
    return Turn(
        sampler.offload + learner.onload + learner.wake, learner.offload + sampler.onload + sampler.wake
    )


def switches(profile: RunProfile) -> tuple[SwitchProfile, SwitchProfile]:
    """Of learners and of samplers: as measured, and for what was not what it takes at least. Of a profile that is a prior
    itself, as it says."""
    learner, sampler = profile.switch.learner, profile.switch.sampler
    if not profile.steps:
        return learner, sampler
    held = profile.memory.learner.weights + profile.memory.learner.moments, _sampler_tensors(profile)
    rates = [
        2 * size / moved
        for size, one in zip(held, (learner, sampler), strict=True)
        if size and (moved := one.onload + one.offload)
    ]
    rate = min(rates, default=COPIED_BYTES_PER_SECOND)
    woken = learner.wake or sampler.wake
    found = []
    for size, one in zip(held, (learner, sampler), strict=True):
        moves = {} if one.onload or one.offload else {"onload": size / rate, "offload": size / rate}
        found.append(one.model_copy(update=moves | ({} if woken else {"wake": WAKE_SECONDS})))
    return found[0], found[1]


def learner_bytes(profile: RunProfile, ranks: int) -> float:
    """Of one learner's device: weights, moments, activations of its largest pass, and what stays."""
    memory = profile.memory.learner
    tokens = max(_longest(profile), min(memory.pass_tokens, profile.tokens / ranks))
    return memory.kept + _held(memory, profile.devices.learner, ranks) + memory.activations_per_token * tokens


def sampler_bytes(profile: RunProfile) -> float:
    """Of one device of a sampler: its tensors and what stays, or all that it takes in any case."""
    memory = profile.memory.sampler
    return max(memory.least, memory.kept + _sampler_tensors(profile))


def _sampler_tensors(profile: RunProfile) -> float:
    """Weights, and the cache of as many mean sequences as are decoded at once."""
    memory = profile.memory.sampler
    active = min(float(profile.decode.slots), float(profile.answers))
    tokens = active * (profile.prompt_tokens + profile.mean_length)
    return memory.weights + memory.moments + memory.cache_bytes_per_token * tokens


def shared_bytes(profile: RunProfile, ranks: int, swap: bool) -> float:
    """Of a device that a learner and a sampler share; `swap`: only one of them has its tensors there at a time."""
    learner, sampler = learner_bytes(profile, ranks), sampler_bytes(profile)
    if not swap:
        return learner + sampler
    return max(learner + profile.memory.sampler.kept, sampler + profile.memory.learner.kept)


def _held(memory: RoleMemory, measured: int, ranks: int) -> float:
    whole = memory.weights + memory.moments
    return whole * measured / ranks if memory.divided else whole


def _longest(profile: RunProfile) -> float:
    return profile.prompt_tokens + max(profile.lengths)
