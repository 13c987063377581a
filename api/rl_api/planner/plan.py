"""The placement of a run that takes the fewest seconds per step, and why. Pure.

Candidates come from the search over the chain of generating and learning, with hand-over (`rl_api.planner.search`); they are
sorted by an estimate, and the best of them run in virtual time (`rl_api.planner.simulator`). The fastest there is the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from pydantic import Field

from rl_api.base import Model
from rl_api.errors import InvalidConfig
from rl_api.placement_status import Mode
from rl_api.planner.admission import Admission
from rl_api.planner.candidates import best_estimates, candidates, resident
from rl_api.planner.cost import step_learn_seconds, turn
from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile
from rl_api.planner.proportion import in_proportion
from rl_api.planner.replicas import other_replicas
from rl_api.planner.rollout import Rollout
from rl_api.planner.room import Room
from rl_api.planner.simulated import Simulated
from rl_api.planner.simulator import simulate
from rl_api.planner.stations import JUDGE, SIMULATOR, decoding_alone, least_seconds, station_seconds

MOST_SIMULATED: Final = 20
"""Candidates that run in virtual time."""

SAME: Final = 0.01
"""Two predictions that differ by less are the same: the simpler placement is taken."""

ROLLOUT_TOO_LOW: Final = 1 / (1 - 0.29)
TRAINING_TOO_HIGH: Final = 1 / (1 + 0.48)
"""What the times are if those measured are 29 % too low, or 48 % too high: how wrong a profile may be (RLinf's paper)."""


class Alternative(Model):
    """A placement, and what a step takes with it."""

    mode: Mode
    """Who shares devices."""
    samplers: int
    """In all."""
    shared: int
    """Of them those on learners' devices."""
    learners: int
    """Learner ranks."""
    part_groups: int
    """Groups that learners take at once."""
    hand_over_at: float | None = None
    """Share of the groups that are there when shared samplers hand over; null: when learners have a part."""
    hand_over: Literal["interrupt", "drain"] = "interrupt"
    """How shared samplers leave devices."""
    residency: Literal["swap", "keep"] = "keep"
    """What becomes of tensors of who does not have a shared device."""
    predicted_step_seconds: float
    """Of a training step."""
    generating: float
    """Seconds of a step that samplers decode, their mean."""
    learning: float
    """Seconds of a step that learners compute."""

    @property
    def placement(self) -> Placement:
        """The same without what it takes."""
        return Placement(
            self.learners,
            self.samplers,
            self.shared,
            self.part_groups,
            self.hand_over_at,
            self.hand_over == "interrupt",
            self.residency == "swap",
        )


class Plan(Alternative):
    """The placement that is chosen."""

    reason: str
    """Why, in a sentence."""
    limits: str
    """What a step's time goes into, and what would shorten it, in a sentence."""
    sensitivity: tuple[str, ...] = Field(default=(), strict=False)
    """What becomes of the plan if the profile is wrong, a sentence each."""
    workers: tuple[str, ...] = Field(default=(), strict=False)
    """What other numbers of the task's workers would do, a sentence each."""
    alternatives: tuple[Alternative, ...] = Field(default=(), strict=False)
    """Others that were simulated, the fastest first."""


@dataclass(frozen=True)
class Tried:
    """A placement and its simulation."""

    placement: Placement
    simulated: Simulated

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.simulated.step_seconds


def predict(profile: RunProfile, placement: Placement, in_order: bool | None = None) -> Simulated:
    """What some steps of a run are with this placement; a large run in proportion. `in_order`: see `Room`."""
    small, placed, fewer = in_proportion(profile, placement)
    settled, steps = settling(profile.max_staleness)
    queue = Admission(small.prompts_per_step, placed.samplers, profile.max_staleness, in_order)
    return replace(simulate(small, placed, steps=steps, queue=queue, fewer=fewer), settled=settled)


def settling(staleness: int) -> tuple[int, int]:
    """Steps to leave out at the beginning, and those to simulate in all.

    Groups of staleness + 1 steps are under way at once, and of these steps one may end right after another: means are over
    as many of them, twice.
    """
    if staleness == 0:
        return 1, 3
    return staleness + 2, staleness + 2 + 2 * (staleness + 1)


def make_plan(profile: RunProfile, room: Room, sensitivity: bool = True, most: int = MOST_SIMULATED) -> Plan:
    """The placement with the shortest predicted step among those that fit, of the `most` best ones by an estimate.

    Raises InvalidConfig, one sentence: none fits.
    """
    tried = _tried(profile, room, most)
    if not tried:
        memory = profile.devices.memory
        raise InvalidConfig(
            f"placement: found {room.devices} devices"
            + (f" of {memory:.3g} bytes" if memory is not None else "")
            + f", on which no placement of mode {' or '.join(room.modes)} fits; allowed: more of them, or larger ones"
        )
    best = simplest(tried)
    others = [one for one in tried if one is not best]
    found = _alternative(best)
    return Plan(
        **found.model_dump(),
        reason=_reason(best, others, profile),
        limits=_limits(best, profile),
        sensitivity=_sensitivity(best.placement, profile, room, most) if sensitivity else (),
        workers=_workers(best.placement, profile, room) if sensitivity else (),
        alternatives=tuple(_alternative(one) for one in others),
    )


def _tried(profile: RunProfile, room: Room, most: int) -> list[Tried]:
    rollout = Rollout(profile, room.in_order)
    if room.now is not None:
        room = replace(room, now=resident(room.now, profile, room.residency))
    placements = candidates(profile, room, rollout)
    chosen = best_estimates(profile, placements, rollout, most, room.now)
    tried = [Tried(placement, predict(profile, placement, room.in_order)) for placement in chosen]
    return sorted(tried, key=lambda one: (one.seconds, repr(one.placement)))


def simplest(tried: list[Tried]) -> Tried:
    """The fastest, or one as fast of which fewer samplers share, in fewer parts."""
    fast = [one for one in tried if one.seconds <= tried[0].seconds * (1 + SAME)]
    return min(fast, key=lambda one: (one.placement.shared, -one.placement.part_groups, one.seconds))


def _alternative(tried: Tried) -> Alternative:
    placement = tried.placement
    return Alternative(
        mode=placement.mode,
        samplers=placement.samplers,
        shared=placement.shared,
        learners=placement.learners,
        part_groups=placement.part_groups,
        hand_over_at=placement.hand_over_at,
        hand_over="interrupt" if placement.interrupt else "drain",
        residency="swap" if placement.swap else "keep",
        predicted_step_seconds=tried.seconds,
        generating=tried.simulated.generating,
        learning=tried.simulated.learning,
    )


def seconds_text(value: float) -> str:
    """Seconds for people."""
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def _reason(best: Tried, others: list[Tried], profile: RunProfile) -> str:
    groups = profile.prompts_per_step
    found = f"{best.placement.words(groups)}: {seconds_text(best.seconds)} per step"
    if not others:
        return found + "; nothing else fits"
    second = others[0]
    found += f"; next {second.placement.words(groups)}: {runner_up(second.seconds, best.seconds)}"
    modes = {best.placement.mode, second.placement.mode}
    for one in others[1:]:
        if one.placement.mode not in modes:
            modes.add(one.placement.mode)
            found += f"; {one.placement.words(groups)}: {runner_up(one.seconds, best.seconds)}"
    return found


def runner_up(seconds: float, best: float) -> str:
    """Seconds of another placement beside the chosen one's, for people."""
    if abs(seconds / best - 1) <= SAME:
        return f"{seconds_text(seconds)} (as fast)"
    return f"{seconds_text(seconds)} ({seconds / best - 1:+.0%})"


def _limits(best: Tried, profile: RunProfile) -> str:
    placement, simulated = best.placement, best.simulated
    rollout = Rollout(decoding_alone(profile))
    longest = rollout.curve(max(1, profile.answers)).seconds if profile.max_staleness == 0 else 0.0
    change = turn(profile, placement.swap)
    switching = (change.to_learner + change.to_sampler) if placement.shared else 0.0
    whole = best.seconds
    if longest > 0.6 * whole:
        return (
            f"the group with the longest answer takes {seconds_text(longest)} of {seconds_text(whole)} on a sampler of its "
            "own, with its prompts and score: more devices for samplers would not shorten that, buffer.maxStaleness above 0 "
            "or a smaller sampler.maxNewTokens would"
        )
    learning = step_learn_seconds(profile, placement.learners)
    judging, stepping = station_seconds(profile, JUDGE), station_seconds(profile, SIMULATOR)
    parts = {
        f"samplers decode for {seconds_text(simulated.generating)}": simulated.generating,
        f"learners compute for {seconds_text(learning)}": learning,
        f"reward models score for {seconds_text(judging)}": judging,
        f"simulators step environments for {seconds_text(stepping)}": stepping,
        f"devices change hands for {seconds_text(switching)}": switching,
        f"new weights travel for {seconds_text(profile.publish_seconds)}": profile.publish_seconds,
        f"actors call each other for {seconds_text(profile.overhead_seconds)}": profile.overhead_seconds,
    }
    text = max(parts, key=lambda name: parts[name])
    return f"of {seconds_text(whole)} per step {text}: that is what limits"


def _workers(chosen: Placement, profile: RunProfile, room: Room) -> tuple[str, ...]:
    return other_replicas(
        profile, lambda other: predict(other, chosen, room.in_order).step_seconds, seconds_text
    )


def _sensitivity(chosen: Placement, profile: RunProfile, room: Room, most: int) -> tuple[str, ...]:
    """What is lost with this plan if rollout in truth takes longer, or training less, than the profile says: against the
    plan that would be made then."""
    found = []
    wrong = [
        ("rollout times are 29 % too low", scaled_profile(profile, rollout=ROLLOUT_TOO_LOW)),
        ("training times are 48 % too high", scaled_profile(profile, training=TRAINING_TOO_HIGH)),
    ]
    if least_seconds(profile):
        slower = scaled_profile(profile, workers=ROLLOUT_TOO_LOW)
        wrong.append(("times of the task's workers are 29 % too low", slower))
    for words, other in wrong:
        tried = _tried(other, room, most)
        kept = predict(other, chosen, room.in_order).step_seconds
        best = min([kept, *(one.seconds for one in tried)])
        lost = kept / best - 1
        if lost <= SAME:
            found.append(f"the plan stays if {words}")
        else:
            groups = profile.prompts_per_step
            found.append(
                f"if {words}, {tried[0].placement.words(groups)} would be right, and this plan loses {lost:.1%}"
            )
    return tuple(found)


def scaled_profile(
    profile: RunProfile, rollout: float = 1.0, training: float = 1.0, workers: float = 1.0
) -> RunProfile:
    """The profile with all times of decoding, of learning, and of the task's workers, multiplied."""
    decode, learner = profile.decode, profile.learner
    prefill = profile.prefill_tokens_per_second
    at_workers = profile.simulator_seconds + profile.queued_seconds
    return profile.model_copy(
        update={
            "judge_seconds": profile.judge_seconds * workers,
            "tool_seconds": profile.tool_seconds + at_workers * (workers - 1),
            "simulator_seconds": profile.simulator_seconds * workers,
            "queued_seconds": profile.queued_seconds * workers,
            "decode": decode.model_copy(
                update={
                    "base": decode.base * rollout,
                    "per_active": decode.per_active * rollout,
                    "per_cached_token": decode.per_cached_token * rollout,
                }
            ),
            "prefill_tokens_per_second": None if prefill is None else prefill / rollout,
            "learner": learner.model_copy(
                update={
                    name: known * training
                    for name in ("alpha", "per_pass", "beta", "all_reduce", "optimizer", "log_prob", "value")
                    if (known := getattr(learner, name)) is not None
                }
            ),
        }
    )
