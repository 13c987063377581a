"""How a run goes: what the driver serves at /status and the operator writes into the object's status."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from rl_api.base import StatusModel

Phase = Literal[
    "Pending",
    "Starting",
    "Ready",
    "WarmStart",
    "Training",
    "Evaluating",
    "Checkpointing",
    "Stopping",
    "Suspended",
    "Succeeded",
    "Failed",
    "Interrupted",
]
"""What a run is doing, in one word; for people and the print column. Programs look at conditions."""


class Progress(StatusModel):
    """One reading of a training run. Numbers that are not known yet are null, never 0."""

    phase: Phase = Field(default="Starting", description="What the run is doing.")
    step: int = Field(default=0, ge=0, description="Training steps done.")
    max_steps: int = Field(default=0, ge=0, description="Training steps at most.")
    reward: float | None = Field(default=None, description="Mean reward of the last step.")
    heldout_score: float | None = Field(
        default=None, description="Share of exact matches in the last evaluation."
    )
    tokens_per_second: float | None = Field(
        default=None, ge=0.0, description="Completion tokens generated per second."
    )
    buffer_fill: float | None = Field(
        default=None, ge=0.0, le=1.0, description="Groups in the buffer over its capacity."
    )
    staleness: float | None = Field(
        default=None, ge=0.0, description="Weight versions the last step's groups were behind, on average."
    )
    eta_seconds: float | None = Field(
        default=None, ge=0.0, description="Seconds to maxSteps at the present pace."
    )
    updated_at: datetime | None = Field(default=None, description="Time of this reading, with time zone.")


class Condition(StatusModel):
    """One fact about a run, as in every Kubernetes object."""

    type: str = Field(
        description="Accepted, Admitted, ClusterReady, Training, Succeeded, Failed or Suspended."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(default="", description="One word for programs.")
    message: str = Field(default="", description="One sentence for people.")
    last_transition_time: datetime | None = Field(default=None, description="When `status` last changed.")
    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec this is about."
    )


class CheckpointStatus(StatusModel):
    """The newest good checkpoint."""

    step: int = Field(ge=0, description="Training steps it holds.")
    uri: str = Field(description="Where it is.")
    time: datetime | None = Field(default=None, description="When it was complete.")


class Attempt(StatusModel):
    """One try at the run."""

    number: int = Field(ge=1, description="1 for the first.")
    ray_job: str | None = Field(default=None, description="Name of its RayJob.")
    start_time: datetime | None = Field(default=None, description="When it began.")
    end_time: datetime | None = Field(default=None, description="When it ended; null: not yet.")
    reason: str | None = Field(default=None, description="Why it ended, in one sentence.")
    from_step: int | None = Field(default=None, ge=0, description="Step it began at.")
    to_step: int | None = Field(default=None, ge=0, description="Last step it finished.")


class RoleStatus(StatusModel):
    """Replicas of one role."""

    desired: int = Field(ge=0, description="Replicas wanted.")
    ready: int = Field(default=0, ge=0, description="Replicas at work.")
    reason: str | None = Field(
        default=None, description="Why some are missing, in one sentence; null: none is."
    )


class RunStatus(StatusModel):
    """How a run goes. Written by the operator only."""

    phase: Phase | None = Field(default=None, description="One word for the print column.")
    conditions: list[Condition] = Field(default_factory=list, description="Facts for programs.")
    progress: Progress | None = Field(default=None, description="Last reading from the driver.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="Newest good checkpoint.")
    attempts: list[Attempt] = Field(default_factory=list, description="All tries, oldest first.")
    roles: dict[str, RoleStatus] = Field(default_factory=dict, description="By role: sampler, learner, head.")
    dashboard_url: str | None = Field(
        default=None, alias="dashboardURL", description="Address of the Ray dashboard."
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec this is about."
    )
    effective_spec_hash: str | None = Field(
        default=None, description="Hash of the spec with the profile's defaults."
    )
