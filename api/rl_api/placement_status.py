"""What a run's status says of who shares devices: as it is, as its driver wants it, and as it was planned."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_api.base import StatusModel
from rl_api.status_fields import MOST, Count, Time

Mode = Literal["collocated", "disaggregated", "hybrid"]
"""What `placement.mode` comes to."""


class PlannedPlacement(StatusModel):
    """Who is to share devices, as fields of `placement` have it; there are as many samplers and learners as before."""

    mode: Mode
    """What it comes to."""
    shared_samplers: int = Field(ge=0, le=MOST)
    """Samplers on learners' devices."""
    part_groups: int | None = Field(default=None, ge=1, le=MOST)
    """Groups that learners begin with while others of the step are still sampled; null: the whole step."""
    hand_over: Literal["interrupt", "drain"] = "interrupt"
    """How samplers leave learners' devices."""
    hand_over_at: float | None = Field(default=None, gt=0, le=1)
    """Share of the step's groups that are finished when shared samplers hand over; null: when learners want the devices."""
    residency: Literal["auto", "swap", "keep"] = "auto"
    """What becomes of a role's tensors while the other has the devices, as the run's spec has it: auto is decided in each
    attempt, by its devices."""
    predicted_step_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of a step as they are predicted."""
    reason: str = ""
    """Why it is better, in one sentence."""


class WantedPlacement(PlannedPlacement):
    """A placement that has been better than the run's own for as many steps as `placement.replan` says."""

    refused: str = ""
    """Why the operator does not give it to the run, in one sentence; empty: it does, or `placement.replan` is null."""


class KeptPlacement(PlannedPlacement):
    """A placement that was given to the run, which it keeps until its spec says something else of it."""

    attempt: int = Field(ge=0)
    """The attempt whose driver planned it, from what it measured; those after it have it. 0: the operator did, by a prior,
    before the first one."""
    time: Time | None = None
    """When it was given."""
    instead_of: str = ""
    """Hash of what the run's spec, with the profile's defaults, said of its placement: once it says something else, that
    holds."""


class PlacementStatus(StatusModel):
    """Who shares devices in the attempt that goes on, why, and what a step takes so."""

    mode: Mode
    """What `placement.mode` comes to, auto as well: collocated (all samplers share), hybrid (some do) or disaggregated."""
    samplers: int = Field(ge=0, le=MOST)
    """Samplers that are wanted, wherever they are."""
    shared: int = Field(default=0, ge=0, le=MOST)
    """Those of them on learners' devices."""
    learners: int = Field(ge=0, le=MOST)
    """Learner processes."""
    part_groups: Count | None = None
    """Groups that learners begin with while others of the step are still sampled; null: the whole step."""
    predicted_step_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of a step as the planner predicted them; null: nobody did."""
    measured_step_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of a step, mean of the last steps; null: none was measured yet."""
    reason: str = ""
    """Why it is placed so, in one sentence."""
    wanted: WantedPlacement | None = None
    """The placement that would be better, as the driver says it; null: none is, as far as it knows."""
    planned: KeptPlacement | None = None
    """The placement that the run was given, and has, in place of its spec's; null: it has its spec's."""
    next: KeptPlacement | None = None
    """The placement for which this attempt ends, as the next one has it; null: it goes on as it is."""
