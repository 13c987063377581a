"""How a run goes: what the driver serves at /status and the operator writes into the object's status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from rl_api.base import StatusModel

_MOST: Final = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exact."""


def _with_zone(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    return time


Count = Annotated[int, Field(ge=0, le=_MOST)]
"""A number of steps, attempts or generations."""

Time = Annotated[datetime, AfterValidator(_with_zone)]
"""A moment. One without a zone is none: the API server would not store it."""

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
    step: Count = Field(default=0, description="Training steps done.")
    max_steps: Count = Field(default=0, description="Training steps at most.")
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
    updated_at: Time | None = Field(
        default=None, description="Time of this reading; in a run's status by the operator's clock."
    )


class Condition(StatusModel):
    """One fact about a run, as in every Kubernetes object."""

    type: str = Field(
        description="Accepted, Admitted, ClusterReady, Training, Succeeded, Failed or Suspended."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(default="", description="One word for programs.")
    message: str = Field(default="", description="One sentence for people.")
    last_transition_time: Time | None = Field(default=None, description="When `status` last changed.")
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec this is about."
    )


class CheckpointStatus(StatusModel):
    """The newest good checkpoint."""

    step: Count = Field(description="Training steps it holds.")
    uri: str = Field(max_length=4096, description="Where it is.")
    time: Time | None = Field(default=None, description="When it was complete.")


class Attempt(StatusModel):
    """One try at the run."""

    number: int = Field(ge=1, description="1 for the first.")
    ray_job: str | None = Field(default=None, description="Name of its RayJob.")
    start_time: Time | None = Field(default=None, description="When it began.")
    ready_time: Time | None = Field(
        default=None, description="When all pods that it begins with were there; null: not yet."
    )
    end_time: Time | None = Field(default=None, description="When it ended; null: not yet.")
    reason: str | None = Field(default=None, description="Why it ended, in one sentence.")
    from_step: Count | None = Field(default=None, description="Step it began at.")
    to_step: Count | None = Field(default=None, description="Last step it finished.")
    image: str | None = Field(default=None, description="Image that it began with.")
    profile_hash: str | None = Field(default=None, description="Hash of the profile that it began with.")
    spec_hash: str | None = Field(
        default=None, description="Hash of the spec, with the profile's defaults, that it began with."
    )


class RoleStatus(StatusModel):
    """Replicas of one role."""

    desired: int = Field(ge=0, description="Replicas wanted.")
    ready: int = Field(default=0, ge=0, description="Replicas at work.")
    reason: str | None = Field(
        default=None, description="Why some are missing, in one sentence; null: none is."
    )


WISH_HEADER: Final = "Idempotency-Key"
"""Header of a request for a checkpoint: the same id is the same wish, however often it is brought."""


class CheckpointRequest(StatusModel):
    """A wish for a checkpoint that the driver has been told of, while it counts."""

    id: str = Field(description="What the driver's answer is known by: an answer to another wish is none.")
    time: Time | None = Field(default=None, description="When the wish came up.")


class RunStatus(StatusModel):
    """How a run goes. Written by the operator only."""

    phase: Phase | None = Field(default=None, description="One word for the print column.")
    conditions: list[Condition] = Field(default_factory=list, description="Facts for programs.")
    progress: Progress | None = Field(default=None, description="Last reading from the driver.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="Newest good checkpoint.")
    checkpoint_request: CheckpointRequest | None = Field(
        default=None, description="The last checkpoint that a run is stopped with, while it is waited for."
    )
    attempts: list[Attempt] = Field(default_factory=list, description="All tries, oldest first.")
    roles: dict[str, RoleStatus] = Field(default_factory=dict, description="By role: sampler, learner, head.")
    dashboard_url: str | None = Field(
        default=None, alias="dashboardURL", description="Address of the Ray dashboard."
    )
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec this is about."
    )
    effective_spec_hash: str | None = Field(
        default=None, description="Hash of the spec with the profile's defaults."
    )
    nulls: list[str] | None = Field(
        default=None, description="Fields of the spec that were null when the run began, and stay so."
    )


def read_progress(document: Mapping[str, Any]) -> Progress:
    """What a program says of its progress: a figure that is none, or beyond all bounds, counts as not said.

    Its clock is its own: `updated_at` is None. ValueError, with a sentence, for a phase that there is not.
    """
    said = _good_fields(Progress, {key: value for key, value in document.items() if key != "updatedAt"})
    if "phase" in document and "phase" not in said:
        raise ValueError(f"its answer has a wrong field phase: found {document['phase']!r}")
    return Progress.model_validate(said, by_alias=True, by_name=False)


def read_checkpoint(document: object) -> CheckpointStatus | None:
    """The checkpoint that a program tells of; None: it tells of none, or of one that nobody could find again."""
    said = _good_fields(CheckpointStatus, document) if isinstance(document, Mapping) else {}
    if not {"step", "uri"} <= said.keys():
        return None
    return CheckpointStatus.model_validate(said, by_alias=True, by_name=False)


def _good_fields(model: type[StatusModel], document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        bad = {one["loc"][0] for one in error.errors(include_url=False) if one["loc"]}
        return {key: value for key, value in document.items() if key not in bad}
    return dict(document)
