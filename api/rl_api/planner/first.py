"""The placement with which a run begins of which nothing is measured yet, by a prior. Pure.

Who begins a run asks here: the operator before it makes pods, and on one machine the driver. Only one of them does, so that
they cannot differ: the operator writes what it chose into the spec that the driver reads, or, where it stays with what the
user's file has, the driver of its attempt does not choose again.

A prior is trusted for ratios, not for much: the run begins with another placement than its file's only where that gains the
share of a step for which it would be given one later (`placement.replan.threshold`), has as many samplers and learners, and
nothing of it is said in the file. What is measured then speaks for all placements, its own included: that a prior has chosen
binds nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rl_api.errors import InvalidConfig
from rl_api.placement_status import PlannedPlacement
from rl_api.planner.forecast import (
    Forecast,
    forecast,
    is_planned,
    placed,
    placed_fields,
    rounded,
    same,
    sentence,
)
from rl_api.planner.prior import Prior
from rl_api.planner.room import Room, placement_of, room_of
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.sizes.residency import residency

PRIOR_VARIABLE: Final = "RLTRAIN_PLACEMENT_BY_PRIOR"
"""Environment variable of a driver whose spec has what the operator chose by a prior."""

_OPEN: Final = ("shared_samplers", "part_groups", "hand_over_at")
"""Fields of `placement` that a prior fills in where the user says nothing of any of them."""

_MOST: Final = 3
"""Placements that are simulated, besides the best of each mode: an operator does it for each run."""


@dataclass(frozen=True)
class First:
    """A placement to begin with, and why."""

    run: RLTrainingRun
    """The run with it, as a user would write it."""
    found: Forecast
    prior: Prior

    @property
    def seconds(self) -> float | None:
        """Of a step as they are predicted; None: the prior is good for ratios alone."""
        return rounded(self.found.best.predicted_step_seconds) if self.prior.absolute else None

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        groups = self.run.spec.algorithm.prompts_per_step
        if self.prior.absolute:
            said = sentence(self.found, groups)
        else:
            words = self.found.best.placement.words(groups)
            said = f"placement {words} would take {self.found.gain:.0%} less time per step than disaggregated in one part"
        return f"{said} ({self.prior.words})"

    @property
    def planned(self) -> PlannedPlacement:
        """For a status."""
        best = self.found.best
        fields = placed_fields(self.run.spec, best)
        return PlannedPlacement(
            mode=best.mode, **fields, predicted_step_seconds=self.seconds, reason=self.reason
        )


def begins_by_prior(spec: RunSpec) -> bool:
    """Whether a prior chooses with which placement a run begins: it may change it later anyway, and says nothing of it."""
    placement = spec.placement
    return (
        is_planned(spec)
        and placement.replan is not None
        and all(getattr(placement, name) is None for name in _OPEN)
    )


def first_placement(
    run: RLTrainingRun, prior: Prior, check: Callable[[RunSpec], None] = lambda spec: None
) -> First | None:
    """The placement to begin `run` with, of which `begins_by_prior`; None: with that of its file.

    `check`: raises InvalidConfig for what this version cannot run.
    """
    replan = run.spec.placement.replan
    assert replan is not None, "it begins by a prior"
    try:
        room = room_by_prior(run.spec, prior)
        found = forecast(prior.profile, run, check, as_many=True, room=room, most=_MOST)
        if found is None or same(found.best, run.spec) or found.gain < replan.threshold:
            return None
        return First(placed(run, found.best), found, prior)
    except InvalidConfig:
        return None


def room_by_prior(spec: RunSpec, prior: Prior) -> Room:
    """What a plan by `prior` may choose from. Where no memory is known, tensors move as they would: on accelerators."""
    room = room_of(spec)
    if prior.profile.devices.memory is not None:
        return room
    return replace(room, residency=residency(room.residency, None, None, accelerated=prior.accelerated))


def as_asked(spec: RunSpec) -> RunSpec:
    """The spec as its user wrote it, of one whose placement a prior has chosen."""
    placement = spec.placement.model_copy(update=dict.fromkeys(_OPEN))
    return spec.model_copy(update={"placement": placement})


def room_as_asked(spec: RunSpec) -> Room:
    """What may be chosen for a run that began by a prior: all that its user left open."""
    return replace(room_of(as_asked(spec)), now=placement_of(spec))
