"""How a run goes: what the driver serves at /status and the operator writes into the object's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from rl_api.base import StatusModel
from rl_api.describe import found
from rl_api.placement_status import PlacementStatus
from rl_api.printable import printable
from rl_api.status_fields import Count, Time

LONGEST_URI: Final = 1024
"""Bytes of a checkpoint's address, whoever says it."""


MOST_ATTEMPTS: Final = 50
"""Attempts that a status lists: a run that is suspended and resumed for months has more of them."""

MOST_EVICTIONS: Final = 20
"""Evictions that a status lists, the newest ones."""


def _findable(checkpoint: object) -> object:
    """Versions before this one kept addresses of up to 4096 characters: such a one counts as none."""
    uri = checkpoint.get("uri") if isinstance(checkpoint, Mapping) else None
    return None if isinstance(uri, str) and len(uri) > LONGEST_URI else checkpoint


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

    phase: Phase = "Starting"
    """What the run is doing."""
    step: Count = 0
    """Training steps done."""
    max_steps: Count = 0
    """Training steps at most."""
    reward: float | None = None
    """Mean reward of the last step."""
    heldout_score: float | None = None
    """Share of exact matches in the last evaluation."""
    tokens_per_second: float | None = Field(default=None, ge=0.0)
    """Completion tokens generated per second."""
    total_tokens_per_second: float | None = Field(default=None, ge=0.0)
    """Tokens trained on per second, those of prompts and observations too."""
    buffer_fill: float | None = Field(default=None, ge=0.0, le=1.0)
    """Groups in the buffer over its capacity."""
    staleness: float | None = Field(default=None, ge=0.0)
    """Weight versions the last step's groups were behind, on average."""
    sampler_busy: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the time of the last steps for which samplers made what was trained on, their mean."""
    learner_busy: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the time of the last steps for which learners trained."""
    sampler_cpus: float | None = Field(default=None, ge=0.0)
    """Processor cores that one sampler kept busy, mean of the last step."""
    learner_cpus: float | None = Field(default=None, ge=0.0)
    """Processor cores that one learner kept busy, likewise."""
    driver_cpus: float | None = Field(default=None, ge=0.0)
    """Processor cores that the driver kept busy, likewise."""
    sampler_gpu_busy: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the time for which a sampler's GPU computed, as its driver counts it; null: no GPU, or it does not say."""
    learner_gpu_busy: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the time for which a learner's GPU computed, likewise."""
    object_store_bytes: Count | None = None
    """Bytes of weights and answers that the last step put into the object store."""
    between_nodes_bytes: Count | None = None
    """Bytes of weights and answers that went from one node to another in the last step, once for each node."""
    eta_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds to maxSteps at the present pace."""
    placement: PlacementStatus | None = None
    """Who shares devices, as the driver says it; null in a run's status, which has it beside this one."""
    updated_at: Time | None = None
    """Time of this reading; in a run's status by the operator's clock."""


class Condition(StatusModel):
    """One fact about a run, as in every Kubernetes object."""

    type: str
    """Accepted, Admitted, ClusterReady, Training, Succeeded, Failed or Suspended."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = ""
    """One word for programs."""
    message: str = ""
    """One sentence for people."""
    last_transition_time: Time | None = None
    """When `status` last changed."""
    observed_generation: Count | None = None
    """Generation of the spec this is about."""


class CheckpointStatus(StatusModel):
    """The newest good checkpoint."""

    step: Count
    """Training steps it holds."""
    uri: str = Field(max_length=LONGEST_URI)
    """Where it is."""
    time: Time | None = None
    """When it was complete."""


class Attempt(StatusModel):
    """One try at the run."""

    number: int = Field(ge=1)
    """1 for the first."""
    ray_job: str | None = None
    """Name of its RayJob."""
    start_time: Time | None = None
    """When it began."""
    ready_time: Time | None = None
    """When all pods that it begins with were there, since they were last taken away; null: not yet."""
    held_seconds: float = Field(default=0.0, ge=0.0)
    """For how long it had them before they were last taken away."""
    trained_time: Time | None = None
    """When it was first seen to train with the pods that it has, or had last; null: it never was."""
    end_time: Time | None = None
    """When it ended; null: not yet."""
    reason: str | None = None
    """Why it ended, in one sentence."""
    from_step: Count | None = None
    """Step it began at."""
    to_step: Count | None = None
    """Last step it finished."""
    image: str | None = None
    """Image that it began with."""
    profile_hash: str | None = None
    """Hash of the profile that it began with."""
    spec_hash: str | None = None
    """Hash of the spec, with the profile's defaults, that it began with."""
    preemptions: Count = 0
    """How often its pods were taken away and given back while it went on: no failures."""


class Eviction(StatusModel):
    """One time that a queue, or the maintenance of a node, took a run's pods away."""

    attempt: int = Field(ge=1)
    """The attempt that was under way."""
    reason: str
    """One word: Preempted, Deactivated, PodsReadyTimeout ... as Kueue says it, or NodeDrained."""
    message: str = ""
    """By whom and why, in one sentence."""
    time: Time | None = None
    """When it was noticed."""
    checkpoint: Literal["written", "none", "late"] | None = None
    """Whether a checkpoint was written for it: written; none (nothing to save, or the driver refused); late (the grace
    period was over first); null: not known yet."""
    stopped_time: Time | None = None
    """When the pods were told to stop."""
    released_time: Time | None = None
    """When the pods were gone and the quota was given back; null: not yet."""
    resumed_time: Time | None = None
    """When pods were asked for again; null: not yet."""
    seconds_to_release: float | None = Field(default=None, ge=0.0)
    """From `time` to `releasedTime`."""
    step: Count | None = None
    """Training steps done when it was noticed."""
    resumed_step: Count | None = None
    """Step of the checkpoint that the run goes on from."""
    predicted_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of training that it was expected to cost when it was noticed."""
    lost_seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of training that it did cost: work done again, and the restart; null: the run does not train again yet."""


class QueueStatus(StatusModel):
    """A run's place in its queue."""

    name: str
    """Queue (Kueue's LocalQueue) that admits the run."""
    workload: str | None = None
    """Kueue's Workload of this run; null: none was made yet."""
    position: int | None = Field(default=None, ge=1)
    """Place among those that wait in the queue; null: it does not wait."""
    waiting: int | None = Field(default=None, ge=1)
    """How many wait in the queue; null: this run does not."""
    since: Time | None = None
    """When the run began to wait, or was admitted."""
    priority: int | None = None
    """Priority in the queue, without the boost."""
    boost: int | None = None
    """What the operator adds to the priority, so that the run that loses least is evicted first; null: nothing."""
    boost_off: Literal["GateOff", "OtherWriter"] | None = None
    """Why it adds nothing: Kueue's gate PriorityBoost is off, or somebody else writes the boost; null: it may."""
    flavors: list[str] = Field(default_factory=list)
    """Flavors on which the run was admitted."""


class PoolUsage(StatusModel):
    """What became of the accelerators that a run had in one pool, in accelerator seconds (of pods, where the run has no
    accelerators)."""

    accelerators: float = Field(default=0.0, ge=0.0)
    """Held at `updatedAt`."""
    trained: float = Field(default=0.0, ge=0.0)
    """While the driver trained, and what it did was kept."""
    unsaved: float = Field(default=0.0, ge=0.0)
    """Of `trained`, what came after the newest checkpoint: lost, if the run failed now."""
    started: float = Field(default=0.0, ge=0.0)
    """While pods started, loaded, waited for somebody, or stopped."""
    evicted: float = Field(default=0.0, ge=0.0)
    """Trained, and lost to evictions, or to a stop without a checkpoint."""
    failed: float = Field(default=0.0, ge=0.0)
    """Trained, and lost to failures."""


class Usage(PoolUsage):
    """What became of the accelerators that a run had, in accelerator seconds (of pods, where the run has no accelerators),
    and how long it waited for them."""

    pools: dict[str, PoolUsage] = Field(default_factory=dict)
    """The same by pool; a role that may go to several counts for `a+b`."""
    waited_seconds: float = Field(default=0.0, ge=0.0)
    """Seconds, not accelerator seconds, for which the run wanted pods and was not given any."""
    updated_at: Time | None = None
    """Up to when it is counted."""


class EarlierAttempts(StatusModel):
    """What attempts come to that are no longer listed."""

    failed: Count
    """How many of them failed."""
    seconds: float = Field(ge=0.0)
    """How long they had all their pods, together."""


class RoleStatus(StatusModel):
    """Replicas of one role: of samplers of several pods each the samplers, not their pods."""

    desired: int = Field(ge=0)
    """Replicas wanted."""
    ready: int = Field(default=0, ge=0)
    """Replicas at work: of several pods each as many as the pods that are ready make up."""
    reason: str | None = None
    """Why some are missing, in one sentence; null: none is."""


WISH_HEADER: Final = "Idempotency-Key"
"""Header of a request for a checkpoint: the same id is the same wish, however often it is brought."""

STATUS_TOKEN_VARIABLE: Final = "RLTRAIN_STATUS_TOKEN"
"""Environment variable of the head with the token that the status server wants, as earlier operators gave it."""

WORKERS_VARIABLE: Final = "RLTRAIN_WORKERS"
"""Environment variable: how many workers `rltrain generate` waits for, on a Ray cluster whose head may be there first."""

STATUS_TOKEN_FILE_VARIABLE: Final = "RLTRAIN_STATUS_TOKEN_FILE"
"""Environment variable of the head with the file that holds it: an environment is seen by every process of Ray's."""

SPEC_HASH_VARIABLE: Final = "RLTRAIN_SPEC_HASH"
"""Environment variable of the head with the hash of the effective spec, for what the driver leaves in the run folder."""


class CheckpointRequest(StatusModel):
    """A wish for a checkpoint that the driver has been told of, while it counts."""

    id: str
    """What the driver's answer is known by: an answer to another wish is none."""
    time: Time | None = None
    """When the wish came up."""


class RunStatus(StatusModel):
    """How a run goes. Written by the operator only."""

    phase: Phase | None = None
    """One word for the print column."""
    conditions: list[Condition] = Field(default_factory=list)
    """Facts for programs."""
    progress: Progress | None = None
    """Last reading from the driver."""
    checkpoint: Annotated[CheckpointStatus | None, BeforeValidator(_findable)] = None
    """Newest good checkpoint."""
    checkpoint_request: CheckpointRequest | None = None
    """The last checkpoint that a run is stopped with, while it is waited for."""
    attempts: list[Attempt] = Field(default_factory=list)
    """All tries, oldest first; of more than 50 the first, the newest, and the last that failed."""
    earlier: EarlierAttempts | None = None
    """What the tries come to that are not in `attempts` any more; null: all are."""
    queue: QueueStatus | None = None
    """Place in the queue; null: the run has none, or the queue admits its RayJob by a label."""
    evictions: list[Eviction] = Field(default_factory=list)
    """The last 20 times that the run's pods were taken away, oldest first."""
    usage: Usage | None = None
    """What became of the accelerators that the run had."""
    roles: dict[str, RoleStatus] = Field(default_factory=dict)
    """By role: sampler, learner, head."""
    placement: PlacementStatus | None = None
    """Who shares devices in the newest attempt, and what a step takes; null: there was none yet, or of a trainer that is not
    rltrain's."""
    dashboard_url: str | None = Field(default=None, alias="dashboardURL")
    """Address of the Ray dashboard."""
    observed_generation: Count | None = None
    """Generation of the spec this is about."""
    effective_spec_hash: str | None = None
    """Hash of the spec with the profile's defaults."""
    nulls: list[str] | None = None
    """Fields of the spec that were null when the run began, and stay so."""


def read_progress(document: Mapping[str, Any]) -> Progress:
    """What a program says of its progress: a figure that is none, or beyond all bounds, counts as not said.

    Its clock is its own: `updated_at` is None. ValueError, with a sentence, for a phase that there is not.
    """
    said = _good_fields(Progress, {key: value for key, value in document.items() if key != "updatedAt"})
    if "phase" in document and "phase" not in said:
        raise ValueError(f"its answer has a wrong field phase: found {found(document['phase'])}")
    return Progress.model_validate(said, by_alias=True, by_name=False)


def read_checkpoint(document: object) -> CheckpointStatus | None:
    """The checkpoint that a program tells of; None: it tells of none, or of one that nobody could find again."""
    said = _good_fields(CheckpointStatus, document) if isinstance(document, Mapping) else {}
    if not {"step", "uri"} <= said.keys() or not is_address(said["uri"]):
        return None
    return CheckpointStatus.model_validate(said)


def is_address(text: object) -> bool:
    """Whether this can be kept as a checkpoint's address: text of at most `LONGEST_URI` bytes, none of which acts on what
    shows it. A longer one is not cut, as nobody could find what the rest says."""
    return isinstance(text, str) and printable(text) == text and 0 < len(text.encode()) <= LONGEST_URI


def _good_fields(model: type[StatusModel], document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        model.model_validate(document)
    except ValidationError as error:
        bad = {one["loc"][0] for one in error.errors() if one["loc"]}
        return {key: value for key, value in document.items() if key not in bad}
    return dict(document)
