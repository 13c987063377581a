"""What a plan may choose from, and where a run is without a plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rl_api.parts import needs_whole_batch, part_groups
from rl_api.planner.placement import Placement
from rl_api.run import RunSpec
from rl_api.sharing_rules import SHARING_RULES
from rl_api.sizes.residency import Wanted

MODES: Final = ("disaggregated", "collocated", "hybrid")


@dataclass(frozen=True)
class Room:
    """What a plan may choose from.

    Attributes:
        devices: in all.
        learners: numbers of learner ranks that exist; empty: any.
        samplers: numbers of samplers in all that exist; empty: any.
        per_sampler: devices of each; above 1 they share none with learners.
        modes: that are allowed.
        parts: whether a part may be less than a step.
        part_groups, hand_over_at: of the user's; None: the planner's.
        shared: samplers on learners' devices as the user says; None: the planner's number.
        interrupt: whether samplers leave devices between two tokens.
        residency: of the user's, auto: swap where both do not fit.
        in_order: whether parts of a step come in the order of prompts; None: under staleness 0, as in the buffer.
        now: the placement without a plan, which is looked at beside others; None: there is none.
        movable: whether others can go on with what a shared sampler has begun.
    """

    devices: int
    learners: tuple[int, ...] = ()
    samplers: tuple[int, ...] = ()
    per_sampler: int = 1
    modes: tuple[str, ...] = MODES
    parts: bool = True
    part_groups: int | None = None
    hand_over_at: float | None = None
    shared: int | None = None
    interrupt: bool = True
    residency: Wanted = "auto"
    in_order: bool | None = None
    now: Placement | None = None
    movable: bool = True


def placement_of(spec: RunSpec) -> Placement:
    """Where samplers and learners of a run are by its spec alone: mode auto is disaggregated unless samplers share."""
    placement, shared = spec.placement, spec.shared_samplers
    hybrid = 0 < shared < spec.sampler.replicas
    return Placement(
        learners=spec.learner.ranks,
        samplers=spec.sampler.replicas,
        shared=shared,
        part_groups=part_groups(spec),
        hand_over_at=placement.hand_over_at if hybrid else None,
        interrupt=placement.hand_over == "interrupt",
        swap=bool(shared) and placement.residency == "swap",
        movable=not spec.task.dialogues,
    )


def why_not_planned(spec: RunSpec) -> str | None:
    """What of a run keeps its placement from being planned while it trains, as part of a sentence; None: nothing does."""
    if spec.trainer.kind != "rltrain":
        return f"trainer.kind {spec.trainer.kind}, whose placement is its own; allowed with rltrain"
    if spec.placement.mode != "auto":
        return f"placement.mode {spec.placement.mode}, which is not planned; allowed with auto"
    if not spec.sampler.devices:
        return "sampler.engine endpoint, whose server has its devices; allowed with torch or vllm"
    return None


def modes_of(spec: RunSpec) -> tuple[str, ...]:
    """Modes that a run may have: its own, or with auto those that nothing else in it speaks against.

    In a hybrid of dialogues nothing would be handed over, which is what it is for (`rl_api.handing_over`).
    """
    if spec.placement.mode != "auto":
        return (spec.placement.mode,)
    return tuple(
        mode
        for mode in MODES
        if not (mode == "hybrid" and spec.task.dialogues)
        and not any(problem for rule in SHARING_RULES for problem in rule(_tried(spec, mode)))
    )


def _tried(spec: RunSpec, mode: str) -> RunSpec:
    """The run with as few samplers as `mode` takes."""
    shared, replicas = {"collocated": (1, 1), "hybrid": (1, 2)}.get(mode, (0, 1))
    sampler = spec.sampler.model_copy(update={"replicas": replicas, "min_replicas": 1})
    placement = spec.placement.model_copy(update={"shared_samplers": shared, "hand_over_at": None})
    return spec.model_copy(update={"sampler": sampler, "placement": placement})


def room_of(spec: RunSpec) -> Room:
    """What may be chosen for a run: with mode auto how its devices are divided, else what its spec leaves open.

    Its devices are those of its learners and samplers as its spec has them; learners come in whole pods.
    """
    placement, now = spec.placement, placement_of(spec)
    per_sampler = max(1, spec.sampler.devices)
    devices = now.devices(per_sampler)
    auto = placement.mode == "auto"
    whole = spec.learner.ranks_per_replica
    return Room(
        devices=devices,
        learners=tuple(range(whole, devices + 1, whole)) if auto else (now.learners,),
        samplers=() if auto else (now.samplers,),
        per_sampler=per_sampler,
        modes=modes_of(spec),
        parts=needs_whole_batch(spec) is None,
        part_groups=placement.part_groups if needs_whole_batch(spec) is None else None,
        hand_over_at=placement.hand_over_at,
        shared=placement.shared_samplers if auto else now.shared,
        interrupt=placement.hand_over == "interrupt",
        residency=placement.residency,
        now=now,
        movable=now.movable,
    )
