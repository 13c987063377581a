"""Placements that are worth a simulation: what the search finds for the chain of generating and learning. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rl_api.planner.cost import (
    learn_seconds,
    learner_bytes,
    next_part_seconds,
    sampler_bytes,
    shared_bytes,
    step_learn_seconds,
    turn,
    update_seconds,
)
from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile
from rl_api.planner.rollout import Curve, Rollout
from rl_api.planner.room import Room
from rl_api.planner.search import Element, Stage, counts_of, search
from rl_api.planner.stations import least_seconds
from rl_api.sizes.residency import Wanted, residency

MOST_ALIKE: Final = 3
"""Placements with the same numbers of learners and samplers that come first. Of 28 made-up profiles (4 to 32 devices), with
all their placements simulated, the plan lost 0.3 % of a step on average, and without this limit 0.9 %."""


def part_sizes(groups: int, room: Room) -> list[int]:
    """Numbers of groups that a part may have, the whole step first: powers of two parts, at least one group each."""
    if room.part_groups is not None:
        return [min(room.part_groups, groups)]
    found = [groups]
    while room.parts and found[-1] > 1 and len(found) < 7:
        found.append(max(1, found[-1] // 2))
    return found


def candidates(profile: RunProfile, room: Room, rollout: Rollout) -> list[Placement]:
    """Placements that fit into `room` and memory, in no order; empty: none does."""
    found: set[Placement] = set()
    groups = profile.prompts_per_step
    for size in part_sizes(groups, room):
        parts = max(1, round(groups / size))
        stages = stages_of_run(profile, room, rollout, parts)
        if all(stage.whole for stage in stages):
            for element in search(stages, room.devices, parts, profile.devices.memory).best:
                found.update(_placements(element, profile, room, size))
    if room.now is not None:
        found.update(replace(room.now, part_groups=size) for size in part_sizes(groups, room))
    moved = {resident(replace(one, movable=room.movable), profile, room.residency) for one in found}
    return [one for one in moved if _fits(one, profile) and _allowed(one, room)]


def stages_of_run(profile: RunProfile, room: Room, rollout: Rollout, parts: int) -> list[Stage]:
    """Generating and learning as stages of a chain, a step being `parts` parts."""
    counts = counts_of([Stage("any", {1: 0.0})], room.devices)
    samplers = sorted({count // room.per_sampler for count in counts if count >= room.per_sampler})
    curves = {count * room.per_sampler: rollout.curve(count) for count in samplers}
    learners = [count for count in counts if not room.learners or count in room.learners]
    learners = learners or [count for count in room.learners if count <= room.devices]
    switch = turn(profile, swap=True)
    each, between = profile.tokens / parts, next_part_seconds(profile)
    return [
        Stage(
            "sampler",
            {count: curve.seconds for count, curve in curves.items()},
            {count: _streamed(curve, parts) for count, curve in curves.items()} if parts > 1 else {},
            {count: sampler_bytes(profile) for count in curves},
            switch.to_sampler,
            hands_over="hybrid" in room.modes and room.per_sampler == 1,
        ),
        Stage(
            "learner",
            {count: step_learn_seconds(profile, count) for count in learners},
            {
                count: (learn_seconds(profile, each, count), learn_seconds(profile, each, count) + between)
                for count in learners
            }
            if parts > 1
            else {},
            {count: learner_bytes(profile, count) for count in learners},
            switch.to_learner,
        ),
    ]


def _streamed(curve: Curve, parts: int) -> tuple[float, float]:
    first = curve.until(1 / parts)
    return first, (curve.seconds - first) / (parts - 1)


def _placements(element: Element, profile: RunProfile, room: Room, size: int) -> Iterable[Placement]:
    way, groups = element.made[0], profile.prompts_per_step
    first, second = element.made[1], element.made[2]
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    learners = int(second[2])
    if way in ("turn", "alternate"):
        yield from _collocated(room, learners, groups)
        return
    part = size if second[0] == "parts" else groups
    if way == "split":
        yield Placement(learners, int(first[2]) // room.per_sampler, 0, part, interrupt=room.interrupt)
        return
    own = max(1, room.devices - learners)
    moments: tuple[float | None, ...] = (room.hand_over_at,)
    if room.hand_over_at is None:
        # Later than learners' first part nothing is left to hand over.
        moments = (None, *(moment for moment in (0.25, 0.5, 0.75, 0.9) if moment <= part / groups))
    if not room.interrupt:
        moments = (None,)
    for shared in _sharing(room, learners):
        for moment in moments:
            yield Placement(learners, own + shared, shared, part, moment, room.interrupt)


def _sharing(room: Room, learners: int) -> list[int]:
    """Numbers of samplers on learners' devices: the user's, or all of these and halves of them down to one."""
    if room.shared is not None:
        return [room.shared] if 0 < room.shared <= learners else []
    found = [learners]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def _collocated(room: Room, learners: int, groups: int) -> Iterable[Placement]:
    if room.per_sampler == 1:
        yield Placement(learners, learners, learners, groups, None, room.interrupt)


def resident(placement: Placement, profile: RunProfile, wanted: Wanted) -> Placement:
    """The placement with what becomes of tensors on its shared devices, as trainers decide it (`rl_api.sizes.residency`)."""
    if placement.shared == 0:
        return placement
    learner, sampler = profile.memory.learner, profile.memory.sampler
    known = learner.weights and (sampler.weights or sampler.least)
    both = shared_bytes(profile, placement.learners, swap=False) if known else None
    memory = profile.devices.memory
    swap = residency(wanted, both, memory, accelerated=memory is not None) == "swap"
    return replace(placement, swap=swap)


def _fits(placement: Placement, profile: RunProfile) -> bool:
    memory, learners = profile.devices.memory, placement.learners
    if memory is None:
        return True
    if placement.shared:
        return shared_bytes(profile, learners, placement.swap) <= memory
    return max(learner_bytes(profile, learners), sampler_bytes(profile)) <= memory


def _allowed(placement: Placement, room: Room) -> bool:
    return (
        (placement.mode in room.modes or placement == room.now)
        and placement.devices(room.per_sampler) <= room.devices
        and placement.samplers >= 1
        and (not room.learners or placement.learners in room.learners)
        and (not room.samplers or placement.samplers in room.samplers)
        and (room.shared is None or placement.shared == room.shared)
    )


def estimate(profile: RunProfile, placement: Placement, rollout: Rollout) -> float:
    """Seconds of a step without a simulation, from when groups are there: what a simulation is worth is sorted by it."""
    change = turn(profile, placement.swap)
    learners = placement.learners
    last = update_seconds(profile, learners) + profile.between_seconds
    if profile.max_staleness > 0:
        sampling, learning = rollout.steady(placement.samplers), step_learn_seconds(profile, learners) + last
        least = least_seconds(profile)
        if placement.shared == 0:
            return max(sampling, learning, least)
        own = placement.samplers - placement.shared
        both = change.to_learner + change.to_sampler
        # Shared samplers are there while learners are not: what they decode in that time the others need not.
        share = placement.shared / placement.samplers
        return max(
            least,
            learning + both,
            sampling + (learning + both) * share if own else sampling + learning + both,
        )
    if placement.mode == "collocated":
        seconds = rollout.curve(placement.samplers).seconds
        return (
            seconds
            + change.to_learner
            + step_learn_seconds(profile, learners)
            + profile.between_seconds
            + change.to_sampler
        )
    groups = profile.prompts_per_step
    if placement.mode == "hybrid":
        at = placement.hand_over_at
        share = placement.part_groups / groups if at is None else at
        moment, curve = rollout.handed_over(placement.samplers, placement.samplers - placement.shared, share)
        return _pipelined(profile, placement, curve, moment + change.to_learner) + last + change.to_sampler
    return _pipelined(profile, placement, rollout.curve(placement.samplers), 0.0) + last


def _pipelined(profile: RunProfile, placement: Placement, curve: Curve, free: float) -> float:
    """When learners that have devices from `free` on have learned the last part of a step."""
    groups, size = profile.prompts_per_step, placement.part_groups
    done, there = free, 0
    while there < groups:
        part = min(size, groups - there)
        there += part
        seconds = learn_seconds(profile, profile.tokens * part / groups, placement.learners)
        seconds += next_part_seconds(profile) if there > part else 0.0
        done = max(done, curve.until(there / groups)) + seconds
    return done


def best_estimates(
    profile: RunProfile,
    placements: Sequence[Placement],
    rollout: Rollout,
    most: int,
    now: Placement | None = None,
) -> list[Placement]:
    """The `most` placements whose steps are estimated to be shortest, and `now` if it fits; of each mode at least one, and
    the one without parts, which estimates are the least sure of: it is what a user would write. Of those that differ in
    parts and hand-over alone a few come first: an estimate that is wrong of one of them is wrong of all."""
    ordered = sorted(
        ((estimate(profile, one, rollout), one) for one in placements),
        key=lambda pair: (pair[0], repr(pair[1])),
    )
    alike: Counter[tuple[int, int, int]] = Counter()
    first: list[tuple[float, Placement]] = []
    later: list[tuple[float, Placement]] = []
    for pair in ordered:
        numbers = pair[1].learners, pair[1].samplers, pair[1].shared
        alike[numbers] += 1
        (first if alike[numbers] <= MOST_ALIKE else later).append(pair)
    chosen = (first + later)[:most]
    for mode in ("disaggregated", "collocated", "hybrid"):
        of_mode = [pair for pair in ordered if pair[1].mode == mode]
        whole = [
            pair
            for pair in of_mode
            if pair[1].part_groups >= profile.prompts_per_step and pair[1].hand_over_at is None
        ]
        chosen += [pair for pair in dict.fromkeys([*of_mode[:1], *whole[:1]]) if pair not in chosen]
    found = [placement for _, placement in chosen]
    return found + [one for one in placements if one == now and one not in found]
