"""Who goes on with what samplers have begun on devices that learners want: a question to a run. Pure."""

from __future__ import annotations

from rl_api.parts import part_groups
from rl_api.run import RunSpec


def hands_over(spec: RunSpec) -> bool:
    """Whether shared samplers give what they have begun to the others, instead of going on with it when learners are done.

    There must be others. Strictly on-policy learners want devices in the middle of a step only where they learn in parts:
    else they come between two steps, for a checkpoint perhaps, and are not worth another rounding of the same tokens.
    """
    placement, sampler = spec.placement, spec.sampler
    if placement.hand_over != "interrupt" or not 0 < spec.shared_samplers < sampler.replicas:
        return False
    early = placement.hand_over_at is not None or part_groups(spec) < spec.algorithm.prompts_per_step
    return early or spec.buffer.max_staleness > 0


def keeps_devices(spec: RunSpec) -> bool:
    """Whether learners that have begun with a part of a step keep the devices until it ends: nothing waits for them there.

    Dialogues stay with their sampler, and a part may need one: then learners leave the devices between two parts.
    """
    return hands_over(spec) and not spec.task.dialogues


def staying_sentence(spec: RunSpec) -> str | None:
    """What to tell of groups that cannot change their sampler; None: there is nothing to tell."""
    if not hands_over(spec) or not spec.task.dialogues:
        return None
    return (
        "placement.handOver is interrupt, but what environments of a task know stays in their sampler: dialogues under way "
        "wait there while learners have the device"
    )
