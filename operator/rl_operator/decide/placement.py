"""What the status shows of who shares devices: as the attempt began, and as its driver says. Pure."""

from __future__ import annotations

from rl_api.placement_status import KeptPlacement, Mode, PlacementStatus, WantedPlacement
from rl_api.progress import RoleStatus, RunStatus
from rl_operator.decide.diagnose import one_line
from rl_operator.model.names import LEARNER
from rl_operator.plan.effective import Effective


def placement_of(effective: Effective) -> PlacementStatus | None:
    """Where an attempt that begins now has its samplers; None: its trainer is not rltrain's."""
    spec = effective.spec
    if spec.trainer.kind != "rltrain":
        return None
    mode, shared, samplers = spec.placement.mode, effective.shared, effective.samplers
    some: Mode = "collocated" if shared == samplers else "hybrid"
    planned = effective.planned
    return PlacementStatus(
        mode=mode if mode != "auto" else some if shared else "disaggregated",
        samplers=samplers,
        shared=shared,
        learners=spec.learner.ranks,
        part_groups=spec.placement.part_groups,
        predicted_step_seconds=planned.predicted_step_seconds if planned is not None else None,
        reason=_reason(mode, shared, planned, said=spec.placement.shared_samplers is not None),
        planned=planned,
    )


def _reason(mode: str, shared: int, planned: KeptPlacement | None, *, said: bool) -> str:
    if planned is not None:
        if not planned.attempt:
            return f"placement.mode is auto: {planned.reason}"
        why = f": {planned.reason}" if planned.reason else ""
        return f"placement.mode is auto, and the driver of attempt {planned.attempt} planned it{why}"
    if mode != "auto":
        return f"placement.mode is {mode}"
    if said:
        return f"placement.mode is auto, and placement.sharedSamplers is {shared}"
    return "placement.mode is auto: each sampler has devices of its own"


def going_on(known: PlacementStatus | None, effective: Effective | None) -> PlacementStatus | None:
    """The same of an attempt that goes on: samplers whose number may change are as many as are wanted now."""
    if effective is None or (known is not None and not effective.elastic):
        return known
    now = placement_of(effective)
    if known is None or now is None:
        return now
    return known.model_copy(update={"samplers": now.samplers})


def told(known: PlacementStatus | None, said: PlacementStatus | None) -> PlacementStatus | None:
    """What is known, with what the driver says of it: what it leaves open stays."""
    if known is None or said is None:
        return known
    news = {name: value for name, value in said if value not in (None, "")}
    # How many there are is for those to say who made their pods.
    for name in ("samplers", "shared", "learners", "planned", "next"):
        news.pop(name, None)
    return known.model_copy(update={**news, "wanted": _wanted(known.wanted, said.wanted)})


def _wanted(known: WantedPlacement | None, said: WantedPlacement | None) -> WantedPlacement | None:
    """What the driver wants now, and why that was refused, where it is what it wanted before."""
    if said is None:
        return None
    said = said.model_copy(update={"reason": one_line(said.reason), "refused": ""})
    alike = known is not None and known.model_copy(update={"refused": ""}) == said
    return known if alike else said


def with_shared(
    own: RoleStatus | None, placement: PlacementStatus, learners: RoleStatus | None
) -> RoleStatus:
    """Replicas of all samplers: `own`, which have pods of their own (None: none), and those in learners' pods, which are at
    work when these are; of pods that are all alike some have fewer samplers, or none."""
    desired, ready = (own.desired, own.ready) if own is not None else (0, 0)
    pods = max(learners.desired, 1) if learners is not None else 1
    there = (learners.ready if learners is not None else 0) * placement.learners // pods
    shared = min(placement.shared, there)
    why = own.reason if own is not None else None
    if why is None and shared < placement.shared:
        why = (learners.reason if learners is not None else None) or f"waiting for pods of the {LEARNER}"
    return RoleStatus(desired=desired + placement.shared, ready=ready + shared, reason=why)


def without_news_of_placement(old: RunStatus, new: RunStatus) -> RunStatus:
    """A status that says no more than the older one but the placement, of which an earlier version said nothing: that is
    written with the first status that is written anyway."""
    alike = old.placement is None and new.model_copy(update={"placement": None}) == old
    return old if alike else new


def same_but_measured(old: RunStatus, new: RunStatus) -> PlacementStatus | None:
    """The newer placement with the older measurement, which may wait to be written."""
    if old.placement is None or new.placement is None:
        return new.placement
    return new.placement.model_copy(update={"measured_step_seconds": old.placement.measured_step_seconds})
