"""How a policy service goes: what the operator writes into the object's status."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from rl_api.base import StatusModel
from rl_api.progress import Condition
from rl_api.status_fields import Count, Time

MOST_PROMOTIONS: Final = 10
"""Promotions that a status lists."""

MOST_REFUSED: Final = 50
"""Digests that are kept from being tried again."""

ServicePhase = Literal["Pending", "Starting", "Serving", "Updating", "Failed"]
"""What a service is doing, in one word; for people and the print column."""

CandidateState = Literal["Evaluating", "RollingOut", "Watching", "RollingBack"]
"""Evaluating: before the gate; RollingOut: copies load it; Watching: it serves, and is compared with the one before;
RollingBack: copies load the one before again."""


class PolicyVersion(StatusModel):
    """One policy."""

    version: str
    """Name of the version, as every answer has it."""
    step: Count
    """Training steps it has."""
    digest: str
    """SHA-256 of its manifest."""
    source: str
    """Where it is."""
    run: str | None = None
    """Run that it is of; null: of none."""


class Serving(PolicyVersion):
    """The policy that serves."""

    since: Time | None = None
    """When it began to."""
    probe: float | None = None
    """Score of its probe since then; null: it was not asked."""


class Baseline(StatusModel):
    """What the policy before did, when a candidate took its place."""

    requests: Count = 0
    """Requests of the last minutes."""
    errors: Count = 0
    """Those that failed."""
    token_seconds: float | None = None
    """Time per token, 95th percentile."""
    probe: float | None = None
    """Score of its probe."""


class Candidate(PolicyVersion):
    """A policy that may come to serve."""

    state: CandidateState
    """What is done with it."""
    since: Time | None = None
    """When that began."""
    message: str = ""
    """How it goes, in one sentence."""
    baseline: Baseline | None = None
    """What it is compared with."""
    before: PolicyVersion | None = None
    """The policy that it takes the place of; null: there was none."""


class Promotion(StatusModel):
    """What became of a candidate."""

    version: str
    """Name of the version."""
    step: Count
    """Training steps it has."""
    digest: str
    """SHA-256 of its manifest."""
    time: Time | None = None
    """When it was decided."""
    result: Literal["promoted", "refused", "rolledBack", "stuck"]
    """promoted: it serves or has served; refused: it never did; rolledBack: it was taken back; stuck: it was to be, and the
    one before could not be loaded again."""
    message: str = ""
    """Why, in one sentence."""


class Traffic(StatusModel):
    """Share of one version."""

    version: str
    """Name of the version."""
    percent: int = Field(ge=0, le=100)
    """Share of the copies that serve it, in percent."""


class ReplicasStatus(StatusModel):
    """Copies of the policy."""

    desired: int = Field(default=0, ge=0)
    """Copies wanted."""
    ready: int = Field(default=0, ge=0)
    """Copies that answer."""
    reason: str | None = None
    """Why some are missing, in one sentence; null: none is."""


class FollowedRun(StatusModel):
    """Where the followed run keeps its checkpoints; kept when the run is gone."""

    name: str
    """Name of the run."""
    uid: str
    """Uid of the run."""
    claim: str | None = None
    """PersistentVolumeClaim; null: none."""
    folder: str
    """Folder in the claim, or s3://bucket/folder."""


class ServiceStatus(StatusModel):
    """How a service goes. Written by the operator only."""

    phase: ServicePhase | None = None
    """One word for the print column."""
    conditions: list[Condition] = Field(default_factory=list)
    """Facts for programs: Accepted, SourceFound, ClusterReady, Serving, Promoting."""
    serving: Serving | None = None
    """The policy that serves; null: none yet."""
    first: str | None = None
    """Version of the first policy that served, which took the Ray cluster that came up without one; null: none has."""
    candidate: Candidate | None = None
    """The policy that may come next; null: none."""
    traffic: list[Traffic] = Field(default_factory=list)
    """Share of each version."""
    endpoints: list[str] = Field(default_factory=list)
    """Addresses inside the cluster."""
    replicas: ReplicasStatus | None = None
    """Copies of the policy."""
    promotions: list[Promotion] = Field(default_factory=list)
    """What became of the last ten candidates, oldest first."""
    refused: list[str] = Field(default_factory=list)
    """Digests that are not tried again, oldest first."""
    followed: FollowedRun | None = None
    """The run that is followed, as it was found."""
    observed_generation: Count | None = None
    """Generation of the spec this is about."""
