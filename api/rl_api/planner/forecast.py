"""What a profile says of a run, and of another placement that it could have. Pure.

Planned for operator and trainer alike: a run that trains is forecast by its driver, one that has not begun by whoever begins
it (`rl_api.planner.first`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rl_api.errors import InvalidConfig
from rl_api.placement_status import WantedPlacement
from rl_api.planner.candidates import resident
from rl_api.planner.of_run import of_run
from rl_api.planner.placement import Placement
from rl_api.planner.plan import Alternative, make_plan, predict
from rl_api.planner.profile import RunProfile
from rl_api.planner.room import Room, placement_of, room_of
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.validation import check_document

MOST = 8
"""Placements that a forecast simulates, besides the best of each mode: it is made again and again, beside the loop."""


@dataclass(frozen=True)
class Forecast:
    """What a profile says of a run.

    Attributes:
        now: seconds of a step with the placement that the run has.
        best: the placement with the shortest step that this version can run.
    """

    now: float
    best: Alternative

    @property
    def gain(self) -> float:
        """Share of a step's time that `best` saves."""
        return max(0.0, 1 - self.best.predicted_step_seconds / self.now) if self.now else 0.0


def is_planned(spec: RunSpec) -> bool:
    """Whether the placement of a run is chosen by what is measured of it."""
    return spec.trainer.kind == "rltrain" and spec.placement.mode == "auto" and bool(spec.sampler.devices)


def forecast(
    profile: RunProfile,
    run: RLTrainingRun,
    check: Callable[[RunSpec], None],
    *,
    as_many: bool = False,
    room: Room | None = None,
    most: int = MOST,
) -> Forecast | None:
    """What `profile` says of `run`; None: it is of another batch, staleness or kind of sampler, or no plan can be run.

    Args:
        profile: of such runs.
        run: with the placement that it has.
        check: raises InvalidConfig for what this version cannot run.
        as_many: with as many samplers and learners as it has.
        room: what may be chosen from; None: what its spec leaves open.
        most: placements that are simulated, besides the best of each mode.
    """
    spec = run.spec
    if not fits(profile, spec):
        return None
    profile, room = of_run(profile, spec), room or room_of(spec)
    if as_many:
        room = replace(room, learners=(spec.learner.ranks,), samplers=(spec.sampler.replicas,))
    # Of all modes the fastest; where this version cannot run it, of each mode alone.
    best = _best(profile, run, room, check, most)
    if best is None:
        alone = (_best(profile, run, replace(room, modes=(mode,)), check, most) for mode in room.modes)
        found = [one for one in alone if one is not None]
        best = min(found, key=lambda one: one.predicted_step_seconds, default=None)
    if best is None:
        return None
    now = resident(placement_of(spec), profile, room.residency)
    return Forecast(predict(profile, now, room.in_order).step_seconds, best)


def fits(profile: RunProfile, spec: RunSpec) -> bool:
    """Whether what was measured was measured of runs like this one."""
    algorithm = spec.algorithm
    return (
        (profile.group_size, profile.prompts_per_step) == (algorithm.group_size, algorithm.prompts_per_step)
        and profile.max_staleness == spec.buffer.max_staleness
        and profile.decode.slots == spec.sampler.max_sequences
    )


def placed(run: RLTrainingRun, plan: Alternative) -> RLTrainingRun:
    """The run with the placement of a plan, as a user would write it; mode auto stays.

    Raises InvalidConfig where the run's other fields do not go with it.
    """
    spec = run.spec
    placement = spec.placement.model_copy(update=placed_fields(spec, plan))
    samplers = plan.samplers
    sampler = spec.sampler.model_copy(
        update={"replicas": samplers, "min_replicas": min(spec.sampler.min_replicas, samplers)}
    )
    learner = spec.learner.model_copy(update={"replicas": plan.learners // spec.learner.ranks_per_replica})
    changed = spec.model_copy(update={"placement": placement, "sampler": sampler, "learner": learner})
    document = run.model_copy(update={"spec": changed}).model_dump(
        by_alias=True, mode="json", exclude_none=True
    )
    found, problems = check_document(document)
    if problems or not isinstance(found, RLTrainingRun):
        raise InvalidConfig(f"the planned placement does not go with the run: {problems[0].sentence}")
    return found


def placed_fields(spec: RunSpec, plan: Alternative) -> dict[str, Any]:
    """What a plan says of `placement`, by its fields. What becomes of tensors stays as the user has it: each attempt decides
    auto by the devices that it finds."""
    hybrid = 0 < plan.shared < plan.samplers
    whole = plan.part_groups >= spec.algorithm.prompts_per_step
    return {
        "shared_samplers": plan.shared,
        "part_groups": None if whole else plan.part_groups,
        "hand_over": plan.hand_over,
        "hand_over_at": plan.hand_over_at if hybrid else None,
        "residency": spec.placement.residency,
    }


def same(plan: Alternative, spec: RunSpec) -> bool:
    """Whether a run has this placement."""
    return alike(plan.placement, placement_of(spec))


def alike(one: Placement, other: Placement) -> bool:
    """Whether two placements are the same but for what becomes of tensors, and for what has no meaning in their mode."""
    return _compared(one) == _compared(other)


def wanted_of(found: Forecast, spec: RunSpec) -> WantedPlacement:
    """What the status says of a better placement, which has as many samplers and learners."""
    best, groups = found.best, spec.algorithm.prompts_per_step
    return WantedPlacement(
        mode=best.mode,
        **placed_fields(spec, best),
        predicted_step_seconds=rounded(best.predicted_step_seconds),
        reason=sentence(found, groups),
    )


def sentence(found: Forecast, groups: int) -> str:
    """What is told of a better placement; `groups`: of a step."""
    best = found.best
    return (
        f"placement {best.placement.words(groups)} would take {best.predicted_step_seconds:.3g} s per step where this one "
        f"takes {found.now:.3g} s, {found.gain:.0%} less"
    )


def rounded(seconds: float | None) -> float | None:
    """As people read it; what is no number is not known."""
    return float(f"{seconds:.3g}") if seconds is not None and math.isfinite(seconds) else None


def _best(
    profile: RunProfile, run: RLTrainingRun, room: Room, check: Callable[[RunSpec], None], most: int
) -> Alternative | None:
    """The fastest in `room`; None: there is none, or it cannot be run."""
    try:
        plan = make_plan(profile, room, sensitivity=False, most=most)
        check(placed(run, plan).spec)
    except InvalidConfig:
        return None
    return plan


def _compared(placement: Placement) -> tuple[object, ...]:
    shared = placement.shared
    return (
        placement.learners,
        placement.samplers,
        shared,
        placement.part_groups,
        placement.hand_over_at if shared < placement.samplers else None,
        placement.interrupt if shared else None,
    )
